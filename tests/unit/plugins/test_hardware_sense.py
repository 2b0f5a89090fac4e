"""Physical sense of the datasheets: every figure is held to a law, its family or a number that its source quotes.

The laws are those of the parts: a rate is units times operations a clock times a clock that silicon runs at, a
bandwidth is pins times a data rate of their memory standard, a link is lanes times their rate. They know nothing of
the figures themselves, so that a figure that is halved or doubled breaks one; the last test counts how many do.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import tomli

DATA = Path(__file__).parents[3] / "plugins" / "servelint_plugins" / "hardware" / "data"
SHEETS: dict[str, dict[str, Any]] = {
    f"{path.parent.name}/{path.stem}": tomli.loads(path.read_text("utf-8")) for path in sorted(DATA.glob("*/*.toml"))
}
each_sheet = pytest.mark.parametrize("key", SHEETS)

WANTED = (
    "nvidia/a100-sxm4-40gb",
    "nvidia/a100-sxm4-80gb",
    "nvidia/a100-pcie-40gb",
    "nvidia/a100-pcie-80gb",
    "nvidia/a10",
    "nvidia/a10g",
    "nvidia/a30",
    "nvidia/a40",
    "nvidia/rtx-3090",
    "nvidia/t4",
    "nvidia/p40",
    "nvidia/v100-sxm2-32gb",
    "nvidia/l4",
    "nvidia/l40",
    "nvidia/l40s",
    "nvidia/rtx-4090",
    "nvidia/rtx-6000-ada",
    "nvidia/h100-sxm5-80gb",
    "nvidia/h100-pcie-80gb",
    "nvidia/h100-nvl-94gb",
    "nvidia/h200-sxm5-141gb",
    "nvidia/h200-nvl-141gb",
    "nvidia/h20-96gb",
    "nvidia/h800-sxm5-80gb",
    "nvidia/gh200-96gb",
    "nvidia/gh200-144gb",
    "nvidia/b100-sxm6",
    "nvidia/b200-sxm6-180gb",
    "nvidia/b300-sxm6-270gb",
    "nvidia/gb200-nvl72-186gb",
    "nvidia/gb300-nvl72-279gb",
    "nvidia/rtx-5090",
    "nvidia/rtx-pro-6000-blackwell-ws",
    "nvidia/rtx-pro-6000-blackwell-server",
    "amd/mi210-pcie-64gb",
    "amd/mi250x-oam-128gb",
    "amd/mi300x-oam-192gb",
    "amd/mi325x-oam-256gb",
    "amd/mi355x-oam-288gb",
    "intel/gaudi2-oam-96gb",
    "intel/gaudi3-oam-128gb",
    "intel/gaudi3-pcie-128gb",
    "google/tpu-v4",
    "google/tpu-v5e",
    "google/tpu-v5p",
    "google/tpu-v6e",
    "google/tpu7x",
    "aws/trainium1",
    "aws/trainium2",
    "aws/inferentia2",
    "apple/m1-ultra-64c",
    "apple/m2-ultra-76c",
    "apple/m3-ultra-80c",
    "apple/m4-max-40c",
    "amd/ryzen-ai-max-395-128gb",
    "tenstorrent/blackhole-p150",
)

PINS = {
    "nvidia/v100-sxm2-32gb": 4096,
    "nvidia/t4": 256,
    "nvidia/p40": 384,
    "nvidia/gb10": 256,
    "nvidia/a100": 5120,
    "nvidia/a30": 3072,
    "nvidia/a10": 384,
    "nvidia/a40": 384,
    "nvidia/rtx-3090": 384,
    "nvidia/l40": 384,
    "nvidia/l4": 192,
    "nvidia/rtx-4090": 384,
    "nvidia/rtx-6000-ada": 384,
    "nvidia/h100-nvl-94gb": 6144,
    "nvidia/h100": 5120,
    "nvidia/h800": 5120,
    "nvidia/h200": 6144,
    "nvidia/h20-": 6144,
    "nvidia/gh200": 6144,
    "nvidia/b100": 8192,
    "nvidia/b200": 8192,
    "nvidia/b300": 8192,
    "nvidia/gb200": 8192,
    "nvidia/gb300": 8192,
    "nvidia/rtx-5090": 512,
    "nvidia/rtx-pro-6000": 512,
    "amd/ryzen-ai-max": 256,
    "amd/mi210": 4096,
    "amd/mi": 8192,
    "intel/gaudi2": 6144,
    "intel/gaudi3": 8192,
    "apple/m4-max": 512,
    "apple/": 1024,
    "tenstorrent/blackhole": 256,
}
"""Data pins of the memory by the beginning of the id, first match: widths that vendors print, 1024 an HBM stack."""

PIN_RATES = {
    "HBM2": (1.4e9, 2.5e9),
    "HBM2e": (2.4e9, 4.0e9),
    "HBM3": (4.7e9, 6.9e9),
    "HBM3e": (5.8e9, 9.6e9),
    "GDDR5": (6e9, 9e9),
    "GDDR6": (12e9, 20.1e9),
    "GDDR6X": (19e9, 24e9),
    "GDDR7": (24e9, 32e9),
    "LPDDR5 unified": (6.2e9, 6.5e9),
    "LPDDR5X unified": (7.5e9, 9.6e9),
}
"""Bits a second and pin that parts of each memory standard run at."""

T4_RATE = (10e9, 10e9)
"""T4 runs its GDDR6 far below the others: 5001 MHz over 256 bit."""

READ_WHOLE_S = {"aws": (0.03, 0.055), "google": (0.017, 0.038)}
"""Seconds to read the whole memory once, for the vendors that print no pins."""

OPS = {
    # Tensor (or matrix) FLOP a clock and unit in bf16 or fp16 with fp32 accumulation, and the vector FLOP of fp32.
    "volta": (1024, 128),
    "turing": (1024, 128),
    "ampere-ga100": (2048, 128),
    "ampere-ga102": (1024, 256),
    "ampere-ga102-half": (512, 256),
    "ada": (1024, 256),
    "ada-half": (512, 256),
    "hopper": (4096, 256),
    "blackwell": (8192, 256),
    "blackwell-rtx": (1024, 256),
    "blackwell-rtx-half": (512, 256),
    "cdna2": (1024, 128),
    "cdna3": (2048, 256),
    "cdna4": (4096, 256),
    "rdna3.5": (512, 256),
    # Two passes, as the 16-bit rates are.
    "blackhole": (2048, 0),
}
CLOCKS_HZ = (1.25e9, 2.65e9)
APPLE_HZ = {"apple-m1": 1.296e9, "apple-m2": 1.398e9}
"""Clock of the GPU by generation."""

BOOST_HZ = {"rdna3.5": (2.8e9, 3.0e9)}
"""Where a vendor reckons with a clock that larger chips do not reach."""
TIMES_BF16 = {"tf32": 0.5, "bf16": 1, "fp16": 1, "fp16_acc16": 2, "fp8": 2, "fp8_acc16": 4, "int8": 2, "fp6": 2}
"""Rate of a precision in units of bf16, before the exceptions; 4-bit ones twice the 8-bit ones."""

PER_PART = {
    # Systolic and dataflow parts: bf16 FLOP/s of the whole part, as their second source prints it.
    "google/tpu-v4": 275e12,
    "google/tpu-v5e": 197e12,
    "google/tpu-v5p": 459e12,
    "google/tpu-v6e": 918e12,
    "google/tpu7x": 2307e12,
    "aws/trainium1": 190e12,
    "aws/inferentia2": 190e12,
    "aws/trainium2": 667e12,
    "intel/gaudi2-oam-96gb": 432e12,
    "intel/gaudi3-oam-128gb": 1677e12,
    "intel/gaudi3-pcie-128gb": 1677e12,
}
RATIOS = {
    ("nvidia/a10g", "tf32"): 0.5,
    ("nvidia/l40", "tf32"): 0.5,
    ("nvidia/b300-sxm6-270gb", "int8"): 0.068,
    ("nvidia/gb300-nvl72-279gb", "int8"): 0.066,
    ("nvidia/b300-sxm6-270gb", "fp4"): 6.2,
    ("nvidia/gb300-nvl72-279gb", "fp4"): 6.0,
    ("nvidia/l40s", "int4"): 2,
    ("amd/mi210-pcie-64gb", "int8"): 1,
    ("amd/mi210-pcie-64gb", "int4"): 1,
    ("amd/mi250x-oam-128gb", "int8"): 1,
    ("amd/mi250x-oam-128gb", "int4"): 1,
    ("amd/mi355x-oam-288gb", "fp6"): 4,
    ("amd/ryzen-ai-max-395-128gb", "int8"): 1,
    ("google/tpu-v4", "int8"): 1,
    ("google/tpu-v5p", "fp8"): 1,
    ("google/tpu-v6e", "fp8"): 1,
    ("aws/trainium1", "tf32"): 1,
    ("aws/trainium1", "fp8"): 1,
    ("aws/inferentia2", "tf32"): 1,
    ("aws/inferentia2", "fp8"): 1,
    ("aws/trainium2", "tf32"): 1,
    ("intel/gaudi3-oam-128gb", "tf32"): 0.25,
    ("intel/gaudi3-oam-128gb", "fp16"): 0.25,
    ("intel/gaudi3-oam-128gb", "fp8"): 1,
    ("intel/gaudi3-pcie-128gb", "tf32"): 0.25,
    ("intel/gaudi3-pcie-128gb", "fp16"): 0.25,
    ("intel/gaudi3-pcie-128gb", "fp8"): 1,
}
"""Where a part's rate is not the usual multiple of its bf16 rate, and the notes or the sheet's own documents say so."""

VECTOR = {
    # fp32 without tensor cores, in units of bf16, for parts without a count of units or with another clock for it.
    "nvidia/b100-sxm6": 0.034,
    "nvidia/gb300-nvl72-279gb": 0.032,
    "aws/trainium1": 0.25,
    "aws/inferentia2": 0.25,
    "aws/trainium2": 0.271,
    "intel/gaudi3-oam-128gb": 0.125,
    "intel/gaudi3-pcie-128gb": 0.125,
    "nvidia/h20-96gb": 0.297,
}
UNEVEN_SPARSITY = {
    ("nvidia/b300-sxm6-270gb", "fp4"): 1.286,
    ("nvidia/gb300-nvl72-279gb", "fp4"): 1.333,
    ("aws/trainium2", "tf32"): 3.84,
    ("aws/trainium2", "bf16"): 3.84,
    ("aws/trainium2", "fp16"): 3.84,
    ("aws/trainium2", "fp8"): 1.97,
}
L2_MIB = {
    "pascal": (3,),
    "volta": (6,),
    "turing": (4,),
    "ampere-ga100": (24, 40),
    "ampere-ga102": (6,),
    "ada": (48, 72),
    "ada-ad102": (72, 96),
    "hopper": (50, 60),
    "blackwell": (126,),
    "blackwell-rtx": (96, 128),
    "cdna2-1": (8,),
    "cdna2-2": (16,),
    "cdna3": (32,),
    "cdna4": (32,),
    "rdna3.5": (2,),
    "gaudi2": (48,),
    "gaudi3": (96,),
}
SRAM_KIB = {
    "volta": 128,
    "turing": 96,
    "ampere-ga100": 192,
    "ampere-ga102": 128,
    "ada": 128,
    "hopper": 256,
    "blackwell": 256,
    "blackwell-rtx": 128,
    "cdna2": 64,
    "cdna3": 64,
    "cdna4": 160,
    "blackhole": 1536,
    "neuroncore-v2": 24 * 1024,
    "neuroncore-v3": 28 * 1024,
}
UNITS = {
    "amd/ryzen-ai-max-395-128gb": 40,
    "apple/m1-ultra-64c": 64,
    "apple/m2-ultra-76c": 76,
    "apple/m3-ultra-80c": 80,
    "apple/m4-max-40c": 40,
    "aws/inferentia2": 2,
    "aws/trainium1": 2,
    "aws/trainium2": 8,
    "google/tpu-v4": 2,
    "google/tpu-v5e": 1,
    "google/tpu-v5p": 2,
    "google/tpu-v6e": 1,
    "google/tpu7x": 2,
    "tenstorrent/blackhole-p150": 120,
}
WATTS = {
    # By the way a board is cooled and powered; a class spans less than a factor of two.
    "low-profile": (70, 75),
    "ga102-single": (150, 150),
    "a30": (165, 165),
    "pcie-dual": (250, 450),
    "pcie-12vhpwr": (450, 600),
    "sxm2": (300, 300),
    "sxm4": (400, 400),
    "h20": (400, 500),
    "sxm5": (500, 700),
    "gh200": (900, 1000),
    "sxm6": (700, 1200),
    "nvl72": (1200, 1400),
    "oam-2021": (500, 600),
    "oam-2023": (750, 1000),
    "oam-2025": (1400, 1400),
    "tpu": (170, 200),
    "gb10": (140, 140),
    "strix-halo": (120, 120),
}
LANES = {"NVLink2": 25e9, "NVLink3": 25e9, "NVLink4": 25e9, "NVLink5": 50e9}
"""Bytes a second and direction of one link."""

LINKS = {
    "nvidia/v100-sxm2-32gb": 6,
    "nvidia/a100": 12,
    "nvidia/a30": 4,
    "nvidia/a40": 2.25,
    "nvidia/rtx-3090": 2.25,
    "nvidia/h100-sxm5": 18,
    "nvidia/h100": 12,
    "nvidia/h800": 8,
    "nvidia/": 18,
}
"""Links of a part by the beginning of its id; GA102 runs four at the rate of 2.25 of GA100's."""

PEERS = {"amd/mi210-pcie-64gb": 3, "amd/mi250x-oam-128gb": 8, "nvidia/h200-nvl-141gb": 3, "nvidia/v100-sxm2-32gb": 3}
"""Links that the whole rate of a mesh is made of, where that is not one for each other member."""

PEER_RATES = {
    "amd/mi210-pcie-64gb": 50e9,
    "amd/mi250x-oam-128gb": 50e9,
    "amd/mi300x-oam-192gb": 64e9,
    "amd/mi325x-oam-256gb": 64e9,
    "amd/mi355x-oam-288gb": 76.5e9,
    "intel/gaudi2-oam-96gb": 3 * 12.5e9,
    "intel/gaudi3-oam-128gb": 3 * 25e9,
    "google/tpu-v4": 50e9,
    "google/tpu-v5e": 50e9,
    "google/tpu-v5p": 100e9,
    "google/tpu-v6e": 100e9,
    "google/tpu7x": 100e9,
    "aws/trainium2": 128e9,
}
DOMAINS = {
    "amd/mi210-pcie-64gb": 4,
    "amd/mi250x-oam-128gb": 4,
    "nvidia/h200-nvl-141gb": 4,
    "nvidia/gh200-96gb": 1,
    "nvidia/gh200-144gb": 1,
    "google/tpu-v4": 16**3,
    "google/tpu-v5e": 16**2,
    "google/tpu-v5p": 16 * 20 * 28,
    "google/tpu-v6e": 16**2,
    "google/tpu7x": 9216,
    "aws/inferentia2": 12,
    "aws/trainium1": 16,
    "aws/trainium2": 16,
}
GENERATIONS = {
    "pascal": (3,),
    "volta": (3,), "turing": (3,), "ampere": (4,), "ada": (4,), "hopper": (5,), "blackwell": (5, 6), "cdna2": (4,),
    "cdna3": (5,), "cdna4": (5,), "gaudi2": (4,), "gaudi3": (5,), "blackhole": (5,),
}  # fmt: skip
DIES = {
    "cdna3": (8,), "cdna4": (8,), "blackwell": (2,), "blackwell-rtx": (1,), "gaudi3": (2,), "tpu7x": (2,),
    "cdna2": (1, 2), "apple-m1": (2,), "apple-m2": (2,), "apple-m3": (2,),
}  # fmt: skip
BALANCE = {
    # FLOP a byte of memory bandwidth in bf16 (fp16 where there is no bf16), by kind of part.
    "volta": (130, 150),
    "turing": (190, 210),
    "ampere-ga100": (150, 205),
    "ampere-ga102": (75, 220),
    "ada": (160, 425),
    "hopper": (35, 375),
    "blackwell": (210, 320),
    "blackwell-rtx": (110, 300),
    "nvidia/gb10": (450, 470),
    "cdna2": (110, 120),
    "cdna3": (65 * 3, 65 * 4),
    "cdna4": (300, 330),
    "gaudi2": (170, 180),
    "gaudi3": (450, 510),
    "tpu": (160, 565),
    "neuroncore": (225, 235),
    "apple": (26, 40),
    "rdna3.5": (225, 240),
    "blackhole": (640, 655),
}


def chip(sheet: Mapping[str, Any]) -> str:
    """The architecture, apart where one name stands for chips that differ."""
    name, key = str(sheet["architecture"]), str(sheet["id"])
    if name == "ampere":
        return "ampere-ga100" if "HBM" in sheet["memory"]["kind"] else "ampere-ga102"
    if name == "blackwell" and "DDR" in sheet["memory"]["kind"]:
        return "blackwell-rtx"
    if name.startswith("tpu"):
        return "tpu"
    if name.startswith("apple"):
        return "apple"
    return "neuroncore" if key.startswith("aws/") else name


def halved(sheet: Mapping[str, Any]) -> bool:
    """Whether tensor cores run at half their rate with fp32 accumulation, as on GeForce."""
    return sheet["id"] in ("nvidia/rtx-3090", "nvidia/rtx-4090", "nvidia/rtx-5090", "nvidia/a10g", "nvidia/l40")


def first(table: Mapping[str, Any], key: str) -> Any:
    """The value of the first key that an id begins with."""
    return next((value for beginning, value in table.items() if key.startswith(beginning)), None)


def problems(sheet: Mapping[str, Any]) -> Iterator[str]:
    """What no part of the kind can be, and what the sheet's own sources quote otherwise."""
    yield from memory(sheet)
    yield from compute(sheet)
    yield from link(sheet)
    yield from die(sheet)
    yield from board(sheet)
    yield from efficiency(sheet)


def memory(sheet: Mapping[str, Any]) -> Iterator[str]:
    key, m = sheet["id"], sheet["memory"]
    published, bandwidth = m["published_bytes"], m["bandwidth_bytes_per_s"]
    seen = [m[name] for name in ("driver_total_bytes", "runtime_visible_bytes") if name in m]
    apple = key.startswith("apple/")
    for name in ("driver_total_bytes", "runtime_visible_bytes"):
        # Apple lends the GPU three quarters or more of what it shares with the CPU.
        low = 0.74 if apple and name.startswith("runtime") else 0.9
        if name in m and not low <= m[name] / published <= 1.1:
            yield f"{name} is {m[name] / published:.2f} of the published size"
    named = re.search(r"-(\d+)gb$", key) or re.search(r"\b(\d+) ?GB\b", sheet["name"])
    if named is not None and not 0.9 < published / (int(named[1]) * 1e9) < 1.1:
        yield "the size is not the one in the name"
    if not named and not seen and not 0.03 < published / bandwidth < 0.055:
        yield "no size that such a bandwidth comes with"
    pins = first(PINS, key)
    if pins is not None:
        low, high = T4_RATE if key == "nvidia/t4" else PIN_RATES[m["kind"]]
        if not low <= bandwidth * 8 / pins <= high:
            yield f"{bandwidth * 8 / pins / 1e9:.2f} Gbit/s a pin is no rate of {m['kind']}"
    else:
        low, high = READ_WHOLE_S[key.partition("/")[0]]
        if not low <= published / bandwidth <= high:
            yield f"the memory is read in {published / bandwidth:.3f} s"
    for megabytes in quoted(m, r"(?:^|[(: ])(\d{5,6}) MiB"):
        # A part of two dies that the driver lists apart is quoted by the die.
        whole = [total / dies for total in seen for dies in (1, sheet["dies_per_device"])]
        if min(abs(total / 2**20 - megabytes) for total in whole) > 1:
            yield f"a source quotes {megabytes:.0f} MiB"
    for size in quoted(m, r"total capacity of (\d+\.\d+) GiB") + quoted(m, r"'of (\d+\.\d+)G hbm"):
        if not another(m, size) and abs(m["runtime_visible_bytes"] / 2**30 - size) > 0.011:
            yield f"a source quotes {size} GiB"


def another(m: Mapping[str, Any], size: float) -> bool:
    """Whether the source of a size says that it is of another driver."""
    return any("another driver" in s and f"{size:g}" in s for s in m["sources"])


def quoted(table: Mapping[str, Any], pattern: str) -> list[float]:
    """Numbers that the sources of a table quote, but for those of another part or driver."""
    return [
        float(found)
        for source in table["sources"]
        if not re.search(r"another|16 GB part|not stated\b.*H100", source)
        for found in re.findall(pattern, source)
    ]


def compute(sheet: Mapping[str, Any]) -> Iterator[str]:
    key, kind = sheet["id"], chip(sheet)
    rates = sheet.get("compute", {})
    dense, sparse = rates.get("dense_flops", {}), rates.get("sparse_flops", {})
    sms = sheet.get("die", {}).get("sms")
    base = dense.get("bf16", dense.get("fp16"))
    if kind == "apple":
        if dense and not dense["fp32"] == dense["fp16"] == pytest.approx(
            sms * 256 * APPLE_HZ[sheet["architecture"]], rel=0.01
        ):
            yield "an Apple GPU core does 128 multiply-adds a clock"
        return
    if kind == "pascal":
        # 128 multiply-adds a clock and unit, and four INT8 ones in the place of each.
        if (
            not CLOCKS_HZ[0] <= dense["fp32"] / (sms * 256) <= 1.6e9
            or not 0.95 < dense["int8"] / dense["fp32"] / 4 < 1.05
        ):
            yield "no rate of Pascal's units"
        return
    if base is None:
        yield "no 16-bit rate"
        return
    ops = OPS.get(f"{kind}-half" if halved(sheet) else kind)
    if key in PER_PART:
        if not 0.87 < base / PER_PART[key] < 1.15:
            yield f"the bf16 rate is {base / 1e12:.0f} TFLOP/s"
    elif sms is None:
        # Blackwell with two dies of at most 80 units each.
        if not 120 * 8192 * CLOCKS_HZ[0] < base < 160 * 8192 * 2.1e9:
            yield "no rate of 120 to 160 units"
    elif ops is not None:
        # H20 has its tensor cores cut to a quarter.
        clock = base / (sms * ops[0]) * (4 if key == "nvidia/h20-96gb" else 1)
        slowest, fastest = BOOST_HZ.get(kind, CLOCKS_HZ)
        if not slowest <= clock <= fastest:
            yield f"the clock would be {clock / 1e9:.2f} GHz"
    for precision, rate in dense.items():
        if precision == "fp32":
            vector = VECTOR.get(key)
            if vector is not None:
                if not 0.85 < rate / base / vector < 1.15:
                    yield f"fp32 is {rate / base:.3f} of bf16"
            elif sms is not None and ops is not None and not 0.8 <= rate / base * ops[0] / ops[1] <= 1.25:
                yield "fp32 and tensor cores run at clocks of their own"
            continue
        usual = 4 if precision in ("int4", "fp4") else TIMES_BF16[precision]
        if halved(sheet) and precision in ("int8", "int4", "fp4"):
            # Integers and fp4 run at full rate on GeForce.
            usual *= {"nvidia/l40": 1}.get(key, 2)
        expected = RATIOS.get((key, precision), usual)
        if not 0.93 < rate / base / expected < 1.07:
            yield f"{precision} is {rate / base:.3f} of bf16, expected {expected:g}"
    for precision, rate in sparse.items():
        expected = UNEVEN_SPARSITY.get((key, precision), 2)
        if not 0.98 < rate / dense[precision] / expected < 1.02:
            yield f"sparse {precision} is {rate / dense[precision]:.3f} times dense"
    low, high = BALANCE.get(key, BALANCE[kind])
    if not low <= base / sheet["memory"]["bandwidth_bytes_per_s"] <= high:
        yield f"{base / sheet['memory']['bandwidth_bytes_per_s']:.0f} FLOP a byte"


def link(sheet: Mapping[str, Any]) -> Iterator[str]:
    key, table = sheet["id"], sheet.get("link")
    if table is None:
        return
    one_way, whole = table.get("per_direction_bytes_per_s"), table.get("aggregate_bytes_per_s")
    if one_way is not None:
        if one_way > whole or 2 * one_way != whole:
            yield "one direction is not half of both"
        rate = first(LANES, table["kind"])
        if rate is not None and one_way != rate * first(LINKS, key):
            yield f"{one_way / rate:g} links"
    elif whole != (2 if "ring" in table["kind"] else 4) * 96e9:
        # NeuronLink-v2 has one link to each neighbor; AWS does not say what its total counts.
        yield f"{whole / 96e9:g} links of NeuronLink-v2"
    expected = DOMAINS.get(key)
    if expected is None:
        expected = 72 if "NVL72" in sheet["form_factor"] else 2 if table["pattern"] == "pair" else 8
    if table["domain"] != expected:
        yield f"a domain of {table['domain']}"
    peer = table.get("peer_bytes_per_s")
    if peer is not None:
        if key in PEER_RATES and peer != PEER_RATES[key]:
            yield f"a peer at {peer / 1e9:g} GB/s"
        if table["pattern"] == "torus":
            links = 6 if "3D" in table["kind"] else 4
        else:
            links = PEERS.get(key, table["domain"] - 1)
        if peer * links != one_way:
            yield f"{links} links of {peer / 1e9:g} GB/s are not {one_way / 1e9:g}"


def die(sheet: Mapping[str, Any]) -> Iterator[str]:
    key, kind, table = sheet["id"], chip(sheet), sheet.get("die", {})
    if "l2_bytes" in table:
        name = kind
        if kind == "ada" and sheet["die"]["sms"] > 120:
            name = "ada-ad102"
        if kind == "cdna2":
            name = f"cdna2-{sheet['dies_per_device']}"
        if table["l2_bytes"] / 2**20 not in L2_MIB.get(name, ()):
            yield f"{table['l2_bytes'] / 2**20:g} MiB of L2"
    if "sram_per_sm_bytes" in table:
        expected = SRAM_KIB.get(kind, SRAM_KIB.get(sheet["architecture"]))
        if table["sram_per_sm_bytes"] != expected * 1024:
            yield f"{table['sram_per_sm_bytes'] / 1024:g} KiB a unit"
    if key in UNITS and table["sms"] != UNITS[key]:
        yield f"{table['sms']} units"
    for units in quoted(table, r"(\d+) (?:multiprocessors|compute units|SMs)") if table else ():
        if table["sms"] != units:
            yield f"a source quotes {units:.0f} units"
    if sheet["dies_per_device"] not in DIES.get(kind, DIES.get(sheet["architecture"], (1,))):
        yield f"{sheet['dies_per_device']} dies"


def board(sheet: Mapping[str, Any]) -> Iterator[str]:
    key, table = sheet["id"], sheet.get("power")
    if table is not None:
        low, high = WATTS[board_class(sheet)]
        if not low <= table["tdp_w"] <= high:
            yield f"{table['tdp_w']} W for {board_class(sheet)}"
        for watts in quoted(table, r"(\d+) W\b(?! liquid)"):
            # Several limits of one board: one of them is the figure.
            if table["tdp_w"] not in quoted(table, r"(\d+) W\b") and key != "google/tpu-v4":
                yield f"a source quotes {watts:.0f} W"
    pcie = sheet.get("pcie")
    if pcie is not None:
        if pcie["generation"] not in GENERATIONS[sheet["architecture"]]:
            yield f"PCIe {pcie['generation']}"
        if pcie["lanes"] != 16:
            yield f"{pcie['lanes']} lanes"


def board_class(sheet: Mapping[str, Any]) -> str:
    """The class of `WATTS`."""
    key, form, kind = sheet["id"], sheet["form_factor"], chip(sheet)
    special = {
        "nvidia/gb10": "gb10",
        "amd/ryzen-ai-max-395-128gb": "strix-halo",
        "nvidia/h20-96gb": "h20", "nvidia/a30": "a30", "nvidia/a10": "ga102-single", "nvidia/h200-nvl-141gb":
        "pcie-12vhpwr", "nvidia/rtx-4090": "pcie-12vhpwr", "amd/mi355x-oam-288gb": "oam-2025",
        "intel/gaudi3-pcie-128gb": "pcie-12vhpwr",
    }  # fmt: skip
    if key in special:
        return special[key]
    if "NVL72" in form:
        return "nvl72"
    if form.startswith("SXM"):
        return form.lower()
    if form == "OAM":
        return "oam-2021" if kind in ("cdna2", "gaudi2") else "oam-2023"
    if "superchip" in form:
        return "gh200"
    if kind == "tpu":
        return "tpu"
    if " LP " in f" {form} ":
        return "low-profile"
    return "pcie-12vhpwr" if kind == "blackwell-rtx" else "pcie-dual"


def efficiency(sheet: Mapping[str, Any]) -> Iterator[str]:
    table = sheet.get("efficiency", {})
    for name, (low, high) in {"memory": (0.75, 0.98), "compute": (0.45, 0.98), "link": (0.6, 0.98)}.items():
        if name in table and not low <= table[name] <= high:
            yield f"{name} sustained at {table[name]}"
    # Gaudi 2 comes close to its peak; every GPU stays well below.
    if "compute" in table and (table["compute"] > 0.85) != (sheet["architecture"] == "gaudi2"):
        yield f"compute sustained at {table['compute']}"


@each_sheet
def test_a_part_is_possible(key: str) -> None:
    assert list(problems(SHEETS[key])) == []


@pytest.mark.parametrize("key", WANTED)
def test_the_part_is_there(key: str) -> None:
    assert key in SHEETS


def figures(sheet: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Paths of every number of a datasheet, but for those of its conflicts."""
    stack: list[tuple[tuple[str, ...], Any]] = [((), sheet)]
    while stack:
        path, value = stack.pop()
        if isinstance(value, dict):
            stack += [((*path, name), inner) for name, inner in value.items()]
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield path


def changed(sheet: Mapping[str, Any], path: tuple[str, ...], factor: float) -> dict[str, Any]:
    made: dict[str, Any] = copy.deepcopy(dict(sheet))
    place = made
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] *= factor
    return made


def test_every_halved_or_doubled_figure_is_noticed() -> None:
    tried, missed = 0, []
    for key, sheet in SHEETS.items():
        for path in figures(sheet):
            for factor in (0.5, 2):
                tried += 1
                if not list(problems(changed(sheet, path, factor))):
                    missed.append((key, ".".join(path), factor))
    assert tried > 2300
    assert missed == []
