"""The compilers inside the `ziglang` wheel: clang (also for amdgcn) and lld."""

from __future__ import annotations

import importlib.util
from functools import lru_cache
from pathlib import Path


@lru_cache(maxsize=1)
def zig() -> str | None:
    """The path of the `zig` program, or None if the wheel is not installed."""
    spec = importlib.util.find_spec("ziglang")
    if spec is None or not spec.submodule_search_locations:
        return None
    for folder in spec.submodule_search_locations:
        for name in ("zig", "zig.exe"):
            if (Path(folder) / name).exists():
                return str(Path(folder) / name)
    return None
