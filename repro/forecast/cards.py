"""Graphics cards by name, and sizes as people write them. No torch."""

from __future__ import annotations

import difflib
import re

MIB, GIB = 2**20, 2**30
_UNITS = {
    "": 1,
    "b": 1,
    "kib": 2**10,
    "mib": MIB,
    "gib": GIB,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "m": MIB,
    "g": GIB,
}

CARDS_MIB = {
    "t4": 15360,
    "p100": 16280,
    "v100-16": 16384,
    "v100-32": 32768,
    "a10": 23028,
    "a10g": 23028,
    "l4": 23034,
    "l40s": 46068,
    "a100-40": 40960,
    "a100-80": 81920,
    "h100": 81559,
    "h200": 143771,
    "rtx-3060": 12288,
    "rtx-3080": 10240,
    "rtx-3090": 24576,
    "rtx-4080": 16376,
    "rtx-4090": 24564,
    "rtx-5090": 32607,
    "rtx-a6000": 49140,
}
"""Total memory in MiB, as the driver's own listing (`nvidia-smi`) reports it for each card."""


def parse_bytes(text: str) -> int:
    """Read a size such as `24GiB`, `15.5 gib`, `8000000`. Raises ValueError for anything else, zero included."""
    match = re.fullmatch(r"\s*(\d{1,15}(?:\.\d{1,6})?)\s*([a-zA-Z]*)\s*", text)
    unit = _UNITS.get(match[2].lower()) if match else None
    size = int(float(match[1]) * unit) if match and unit else 0
    if size <= 0:
        raise ValueError(f"{text!r} is not a size; write for example 24GiB or 24564MiB")
    return size


def card_bytes(text: str) -> int:
    """Return the memory of a card given by name or by size. Raises ValueError, naming what is nearest."""
    key = re.sub(r"[\s_]+", "-", text.strip().lower())
    key = re.sub(r"^(nvidia|tesla|geforce)-", "", key)
    for name in (key, f"rtx-{key}"):
        if name in CARDS_MIB:
            return CARDS_MIB[name] * MIB
    try:
        return parse_bytes(text)
    except ValueError:
        near = difflib.get_close_matches(key, CARDS_MIB, n=3, cutoff=0.4) or sorted(CARDS_MIB)
        raise ValueError(
            f"{text!r} is neither a size (24GiB) nor a card that is known; nearest: {', '.join(near)}"
        ) from None


def readable(size: int) -> str:
    """Write bytes for people: `5.93 GiB`, `12.1 MiB`, `512 B`."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (2**10, "KiB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}" if size < 100 * unit else f"{size / unit:.0f} {name}"
    return f"{size} B"
