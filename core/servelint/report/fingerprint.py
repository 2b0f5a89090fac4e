"""Identity of a finding that survives edits elsewhere in the file: file, key path, code; no line numbers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from servelint.lineage import dotted

if TYPE_CHECKING:
    from servelint.lint import Located


def fingerprints(findings: Iterable[Located], file: dict[str, str]) -> Iterator[str]:
    """Yield a fingerprint for each finding, in order; ``file`` maps a file's name to the one that is stable.

    Findings of one rule at one key are told apart by their order.
    """
    seen: dict[tuple[str, str, str], int] = {}
    for found in findings:
        key = (file[found.file], dotted(found.finding.path), found.finding.code)
        seen[key] = seen.get(key, 0) + 1
        text = "\0".join((*key, str(seen[key])))
        yield hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32]
