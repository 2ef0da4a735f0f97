"""How much memory is left for arrays that somebody asks for by a number too many."""

from __future__ import annotations

from pathlib import Path

_UNKNOWN = 1 << 62


def free() -> int:
    """Bytes that this machine can give without taking them from anybody; more than it has, if it does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next((int(x.split()[1]) << 10 for x in lines if x.startswith("MemAvailable:")), _UNKNOWN)
    except OSError:
        return _UNKNOWN


def gib(bytes_: int) -> str:
    """A number of bytes, for people."""
    return f"{bytes_ / (1 << 30):.3g} GiB" if bytes_ < 1 << 80 else f"2^{bytes_.bit_length() - 1} bytes"
