"""What figures of a device are to be read with: which device, which day, which versions of whom."""

from __future__ import annotations

import importlib.util
import platform
from datetime import date
from importlib import metadata
from typing import Any

import polyop
from polyop.ir.errors import UnsupportedError
from polyop.runtime import cxx
from polyop.runtime.gpu import chips
from polyop.runtime.gpu.driver import TITLES, Device, driver

_PACKAGES = ("numpy", "torch", "triton", "nvidia-cuda-nvrtc", "cuda-bindings", "ziglang")


def about(device: Device) -> dict[str, Any]:
    """The day, the driver, and versions of those who are installed; in plain values."""
    return {"device": chips.arch(device), "made_for": chips.native(device).name, "date": date.today().isoformat(),
            "driver": f"{TITLES[device.family]} {chips.version(driver(device.family))}", "versions": versions()}


def versions() -> dict[str, str]:
    """Of polyop, Python, and the packages that take part."""
    found = {"polyop": polyop.__version__, "Python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def lacking(part: str) -> str:
    """Why a part that runs the tests' own cases cannot run here, or "" if it can."""
    wanted = {"wrappers": ("pytest",), "nests": ("pytest",), "library": ("scipy",)}.get(part, ())
    missing = [f"{n} is not installed" for n in wanted if importlib.util.find_spec(n) is None]
    if missing:
        return f"{', '.join(missing)}: `polyop[test]` brings it"
    try:
        if part in ("wrappers", "nests"):
            cxx.compiler()
    except UnsupportedError as error:
        return str(error)
    return ""
