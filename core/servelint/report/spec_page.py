"""Writes the reference of the deployment spec: ``python -m servelint.report.spec_page docs/spec.md``.

Tables, keys and kinds come from the schema and from the policies of the loaded plugins, the words from where a
key is declared, so that neither can drift from what is parsed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from servelint.datasheet import FLOPS, LIMITS
from servelint.descriptors import Policy
from servelint.manager import Plugins
from servelint.review import ALL_TRACES_BYTES, CONFIG_BYTES, TRACE_BYTES
from servelint.spec.document import MAX_BYTES, MOST_PROBLEMS, VERSION
from servelint.spec.model import MOST_CLAIMS, MOST_GROWTH, PERCENTILES, QUANTILES, Deployment
from servelint.spec.schema import (
    LEAST,
    LONGEST_TEXT,
    MOST_KEYS,
    MOST_TABLES,
    Ascending,
    Boolean,
    Either,
    Field,
    Integer,
    Kind,
    Many,
    Named,
    Number,
    Quantity,
    Table,
    Tables,
    Text,
    amount,
    documented,
)
from servelint.units import Dimension

SMALLEST = """\
servelint = 1

[hardware]
accelerator = "nvidia/h100-sxm5-80gb"

[model]
id = "meta-llama/Llama-3.1-8B-Instruct"

[workload]
prompt_tokens = { p50 = 700, p99 = 3000 }
output_tokens = { p50 = 200, p99 = 800 }
rate = "2 req/s"

[slo]
ttft = { p99 = "1 s" }
itl = { p99 = "50 ms" }
"""

DATASHEET = """\
[hardware.datasheet]
id = "acme/a1"
name = "Acme A1"
vendor = "acme"
memory = { published_bytes = 96_000_000_000, bandwidth_bytes_per_s = 4e12 }
compute = { dense_flops = { bf16 = 500e12, fp8 = 1000e12 } }
link = { kind = "acme-link", per_direction_bytes_per_s = 300e9, domain = 8, pattern = "switched" }
pcie = { generation = 5, lanes = 16 }
"""

SPELLINGS: dict[Dimension, tuple[str, ...]] = {
    Dimension.BYTES: ("80e9", '"80 GB"', '"80 GiB"', '"512Gi"', '"80_000 MB"'),
    Dimension.BYTES_PER_SECOND: ("3.35e12", '"3.35 TB/s"', '"400 Gbit/s"', '"400 Gbps"', '"50 GB per s"'),
    Dimension.FLOPS_PER_SECOND: ("989e12", '"989 TFLOP/s"', '"989 TFLOPS"', '"1.979 PFLOP/s"', '"1979 TOPS"'),
    Dimension.SECONDS: ("0.05", '"50 ms"', '"1.5 s"', '"80 us"', '"2 min"', '"1 h"'),
    Dimension.TOKENS: ("8192", '"8192 tok"', '"32k"', '"32Ki"', '"8_192 tokens"'),
    Dimension.TOKENS_PER_SECOND: ("2400", '"2400 tok/s"', '"2.4k tok/s"', '"144k tokens/min"', '"2400 tps"'),
    Dimension.REQUESTS_PER_SECOND: ("6", '"6 req/s"', '"360 req/min"', '"6 qps"', '"6 rps"', '"360 rpm"'),
    Dimension.WATTS: ("700", '"700 W"', '"10.2 kW"'),
    Dimension.FRACTION: ("0.3", '"30 %"', '"30 percent"'),
}
"""How quantities may be written in TOML."""

WORDS = {
    Dimension.BYTES: "bytes",
    Dimension.BYTES_PER_SECOND: "bytes or bits a second",
    Dimension.FLOPS_PER_SECOND: "operations a second",
    Dimension.SECONDS: "time",
    Dimension.TOKENS: "tokens",
    Dimension.TOKENS_PER_SECOND: "tokens a second",
    Dimension.REQUESTS_PER_SECOND: "requests a second",
    Dimension.WATTS: "power",
    Dimension.FRACTION: "fraction",
}

HEAD = f"""\
# The deployment spec

<!-- Written by: python -m servelint.report.spec_page docs/spec.md -->

Every table and key of spec version {VERSION}. A spec is a TOML file with the top-level key `servelint =
{VERSION}`. Only that key is required: what is left out has an engine's or a stated default, which `servelint
check --verbose` lists, and a rule that lacks an input says what it lacks. A key that does not exist, a value of
the wrong kind, and a name that nothing provides are errors (SPEC001 to SPEC004).

The smallest spec that is checked against objectives:

```toml
{SMALLEST}```

## How values are read

**Quantities** are text with a unit, in quotes, or a plain number in the SI unit. `"80 GB"` is 80 x 10^9 bytes and
`"80 GiB"` 80 x 2^30; B is a byte and b a bit. Text without a unit (`"50"`) is an error, except for tokens and
fractions. A text that two readers could take for two values (`"32K"` tokens) is read in one stated way.
"""

LENGTHS = f"""
**Lengths** (`prompt_tokens`, `output_tokens`) are one number of tokens, or a table of quantiles:
{", ".join(f"`{q}`" for q in QUANTILES)}, `min`, `max`, `mean`, `std`.
`p999` is the 99.9th percentile; no dot is written. Between quantiles a length is log-linear; above the highest that is
given nothing is invented, so give `p99` and `max` where they matter. Two quantiles alone leave the mean open, on which
the load rests: 1,000 tokens at `p50` and 8,000 at `p99` have a mean of 1,937 here and of 1,491 as a lognormal, so give
`p90` between them, or `mean` with one quantile. `mean` with `std` is a lognormal, and so is `mean`
with one quantile; `mean` alone is one length. Quantiles must not fall. Prompt and output are independent unless a trace
gives both.

**Objectives** (`ttft`, `itl`, `tpot`, `e2e`) are tables of times by percentile:
{", ".join(f"`{p}`" for p in PERCENTILES)}.

**Load.** `rate` is an open loop: requests arrive whether or not earlier ones are done, and there is a queue.
`concurrency` is a closed loop: so many requests are in flight, each followed by the next, and there is no queue. With
both, the rate decides. With neither, every replica is as full as it is let.

**Replicas.** `hardware.devices` and all degrees of parallelism are of **one replica**; `hardware.replicas` of them
share the workload evenly. `workload.rate` and `workload.concurrency` are of the **whole deployment**. A claim's figure
is of what its `per` says.

**Names** of accelerators and models compare without case, spaces, dashes and underscores: an id, an id without
its owner where only one has it (`L40S`), or an alias. A family (`H100`) is no name: the error lists its
members.

**Policies** say what the engine is told to do. A key that a policy leaves out has the default of the engine, else the
policy's own.

## Tables

| key | value | meaning |
|---|---|---|
| `servelint` | {VERSION} | **Required.** The spec's version. |
"""

INLINE = f"""
### `[hardware.datasheet]`

An accelerator that no plugin provides, with the keys of a plugin's datasheet ([plugins.md](plugins.md)); sizes in bytes
and rates a second are plain numbers, and sources may be left out:

```toml
{DATASHEET}```

Its numbers, and the least and the largest value of each:

| key | least | largest |
|---|---|---|
"""

LIMITS_HEAD = f"""
## Limits

A file within these limits is checked in well under a second; one beyond them is told which. No deployment is near
them.

- A spec has at most {MAX_BYTES:,} characters, of which the first {MOST_PROBLEMS:,} problems are reported.
- A text has at most {LONGEST_TEXT:,} characters, a table with free keys {MOST_KEYS:,} keys.
- There are at most {MOST_CLAIMS} `[[claim]]` and {MOST_GROWTH} `[[workload.growth]]`, since each is priced by itself,
  and {MOST_TABLES:,} `[[evidence]]`.
- A trace has at most {TRACE_BYTES:,} bytes, all traces of a spec together {ALL_TRACES_BYTES:,}; the formats that come
  with the tool take 200,000 requests. A file that several scenarios name is read once.
- A model's `config` has at most {CONFIG_BYTES:,} bytes.
- Numbers are finite, and within the range that the key's row gives. A quantity that is not 0 is at least:

| quantity | least value |
|---|---|
"""

NOT_JUDGED = """
## Accepted, not judged yet

These keys are parsed, checked for their kind and kept, and no figure and no rule reads them today:

"""

PARTLY = """
Read in part only:

- `hardware.instance`: beside an accelerator or a datasheet, a type that no plugin provides is not read.
- `policy.kv_cache.offload`: not priced; where it is set, MEM003 leaves the cost of an eviction open.
- `claim.evidence`, `evidence.file`: files of tools that [evidence.md](evidence.md) does not list are not read; SPEC005
  says so of a claim's.
- `claim.metric` of `concurrency`: only beside a draft (SPD003); of `speedup` only where formats under 16 bits or
  tensor parallelism may be what is faster (QNT002, PAR007); of `e2e` only with its evidence.
- `workload.encoder_tokens`, `workload.images_per_prompt`: they lengthen prompts; the encoder's work is not priced.
"""


class Section(NamedTuple):
    """A table of the page: its path, its class, whether it is an array, and a table that has the same keys."""

    path: str
    cls: type[Any]
    array: bool
    same_as: str

    @property
    def fields(self) -> list[Field]:
        """The keys that this section lists."""
        return [] if self.same_as else documented(self.cls)


def page(policies: Iterable[Policy]) -> str:
    """Return the reference."""
    sections = [section for field in documented(Deployment) for section in _within("", field, {})]
    for policy in sorted(policies, key=lambda p: p.name):
        sections += _sections(f"policy.{policy.name}", policy.config, False, {})
    lines = [HEAD, "| quantity | SI unit | may be written |", "|---|---|---|"]
    for dimension, examples in SPELLINGS.items():
        shown = ", ".join(f"`{text}`" for text in examples)
        lines.append(f"| {WORDS[dimension]} | {dimension.unit or '1'} | {shown} |")
    lines += [LENGTHS + "\n".join(map(_row, documented(Deployment)))]
    lines.append("| `policy` | tables | One `[policy.NAME]` for each choice of the deployment. |")
    for section in sections:
        lines += _text(section)
        if section.path == "hardware":
            lines += [INLINE + "\n".join(_sheet_rows())]
    least = [f"| {words} | {amount(LEAST[d], d)} |" for d, words in WORDS.items()]
    lines += [LIMITS_HEAD + "\n".join(least)]
    unread = [f"- `{s.path}.{field.name}`" for s in sections for field in s.fields if not field.judged]
    lines.append(NOT_JUDGED + "\n".join(unread) + "\n" + PARTLY)
    return "\n".join(lines).rstrip() + "\n"


def _sheet_rows() -> Iterator[str]:
    rates = {f"compute.{name}.PRECISION": FLOPS for name in ("dense_flops", "sparse_flops")}
    for name, (low, high) in {**LIMITS, **rates}.items():
        yield f"| `{name}` | {low:,g} | {high:,g} |"


def _sections(path: str, cls: type[Any], array: bool, seen: dict[type[Any], str]) -> Iterator[Section]:
    """Yield a table and those within it."""
    # A growth scenario has the keys of the workload, whose class extends its own.
    same_as = next((there for other, there in seen.items() if issubclass(other, cls)), "")
    yield Section(path, cls, array, same_as)
    if not same_as:
        seen[cls] = path
        for field in documented(cls):
            yield from _within(f"{path}.", field, seen)


def _within(prefix: str, field: Field, seen: dict[type[Any], str]) -> Iterator[Section]:
    kind = field.kind.table if isinstance(field.kind, Either) else field.kind
    if isinstance(kind, Table | Tables):
        yield from _sections(prefix + field.name, kind.cls, isinstance(kind, Tables), seen)


def _text(section: Section) -> list[str]:
    header = f"[[{section.path}]]" if section.array else f"[{section.path}]"
    lines = ["", f"### `{header}`", ""]
    if section.same_as:
        return [*lines, f"Keys as in `[{section.same_as}]`; what is left out is as there."]
    lines += [_summary(section.cls), "", "| key | value | meaning |", "|---|---|---|"]
    return [*lines, *map(_row, section.fields)]


def _summary(cls: type[Any]) -> str:
    """What the class says of its table, without the table's own name before it."""
    words = " ".join((cls.__doc__ or "").strip().partition("\n\n")[0].split())
    head, colon, rest = words.partition("``: ")
    words = rest if colon and " " not in head.rpartition("``")[2] and rest else words
    return words[:1].upper() + words[1:].replace("``", "`") if words[:1] != "`" else words.replace("``", "`")


def _row(field: Field) -> str:
    required = "**Required.** " if field.required else ""
    unread = "" if field.judged else " *Not judged yet.*"
    return f"| `{field.name}` | {value_of(field.kind)} | {required}{field.doc}{unread} |"


def value_of(kind: Kind) -> str:
    """What a kind accepts, in a few words with an example."""
    if isinstance(kind, Text):
        return ", ".join(f'`"{choice}"`' for choice in kind.choices) if kind.choices else "text"
    if isinstance(kind, Boolean):
        return "`true` or `false`"
    if isinstance(kind, Integer):
        return f"whole number, {kind.minimum:,} to {kind.maximum:,}"
    if isinstance(kind, Number):
        return f"number, {kind.minimum:,.0f} to {kind.maximum:,.0f}"
    if isinstance(kind, Quantity):
        plain = "`0.3` or " if kind.dimension is Dimension.FRACTION else ""
        least = "0" if kind.minimum == 0 else amount(kind.least, kind.dimension)
        return f'{WORDS[kind.dimension]}, {plain}`"{kind.dimension.example}"`; {least} to {kind.most}'
    if isinstance(kind, Ascending):
        return f"table by {'percentile' if kind.keys == PERCENTILES else 'quantile'}, each {value_of(kind.kind)}"
    if isinstance(kind, Many):
        return f"array of at most {kind.limit:,}, each {value_of(kind.kind)}"
    if isinstance(kind, Named):
        return f"table, each {value_of(kind.kind)}" if isinstance(kind.kind, Quantity | Number) else "table"
    if isinstance(kind, Either):
        return f"{value_of(kind.plain)}; or {value_of(kind.table)}"
    if isinstance(kind, Table):
        return "table"
    if isinstance(kind, Tables):
        return f"array of at most {kind.limit:,} tables"
    return f"{kind.expected}, `{kind.example}`" if kind.example else kind.expected


def own_policies(plugins: Plugins) -> list[Policy]:
    """Return the policies of the servelint distribution; those of other plugins are documented by them."""
    return [p for p in plugins.policies if plugins.policy_provider(p.name).distribution == "servelint"]


def main(arguments: list[str]) -> int:
    """Write the page to a file."""
    if len(arguments) != 1:
        print("usage: python -m servelint.report.spec_page FILE", file=sys.stderr)
        return 2
    Path(arguments[0]).write_text(page(own_policies(Plugins())), encoding="utf-8")
    print(arguments[0])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
