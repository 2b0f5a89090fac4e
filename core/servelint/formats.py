"""Number formats: what a stored element costs in bits, and the rate its arithmetic can run at.

A format is data that a plugin provides (hook ``servelint_formats``); core knows none by name.
"""

from __future__ import annotations

from attrs import field, frozen

from servelint.lineage import Source
from servelint.values import Value


@frozen(eq=False, repr=False)
class Format(Value):
    """How tensor elements are stored and computed.

    ``bits`` are stored bits per element without metadata; ``metadata_bits`` the scales, zero points and
    group data per element (128x128 blocks with one fp32 scale: 32/16384). ``compute`` is the precision
    of the native matrix path, or None when the format is weight-only and is dequantized to 16 bit first.
    ``activations`` is the format that the native path needs activations in. ``group`` is the number of
    elements along the reduction axis that share a scale (0: whole tensor or channel). ``covers`` names
    the tensor roles that are stored this way; everything else keeps the checkpoint's own format. ``endings`` are
    what publishers add to a model's name for its checkpoints in the format, in lower case and without separators.
    """

    name: str
    bits: float
    metadata_bits: float = 0.0
    compute: str | None = None
    group: int = 0
    covers: tuple[str, ...] = ("attention", "mlp", "shared_experts", "routed_experts", "ssm", "mtp")
    kv_cache: bool = False
    aliases: tuple[str, ...] = ()
    sources: tuple[str, ...] = field(default=())
    endings: tuple[str, ...] = ()

    @property
    def bits_per_element(self) -> float:
        """Stored bits per element with metadata."""
        return self.bits + self.metadata_bits

    @property
    def bytes_per_element(self) -> float:
        """Stored bytes per element with metadata."""
        return (self.bits + self.metadata_bits) / 8

    @property
    def source(self) -> Source:
        """The source of the bit counts."""
        return Source("format", self.name, "; ".join(self.sources))
