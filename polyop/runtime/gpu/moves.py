"""Copies that calls on a GPU need: plain numbers, values that are about to be overwritten, arrays of the other side."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from polyop.ir.dtypes import BY_NUMPY, U8
from polyop.runtime import arrays
from polyop.runtime.arrays import View
from polyop.runtime.gpu.driver import on
from polyop.runtime.gpu.home import Home
from polyop.runtime.gpu.memory import copy, fill


def lifted(v: View, home: Home) -> View:
    """A plain number as memory of a device."""
    array, address = home.maker((), v.dtype)()
    fill(home.device, address, arrays.as_numpy(v), home.streamer()())
    return replace(v, address=address, kind=home, memory=array, device=home.device)


def snapshot(v: View, home: Home) -> View:
    """A copy of the memory that `v` covers, with the same strides."""
    first, last = v.span()
    array, address = home.maker((last - first,), U8)()
    copy(home.device, address, first, last - first, home.streamer()())
    return replace(v, address=address + v.address - first, owner=array, memory=array)


def brought(array: np.ndarray, home: Home) -> Any:
    """A copy of a NumPy array as one of `home`; this waits for the stream."""
    dense = np.ascontiguousarray(array)
    made, address = home.maker(array.shape, BY_NUMPY[array.dtype])()
    stream = home.streamer()()
    with on(home.device) as d:
        if dense.nbytes:
            d.do("put", address, dense.ctypes.data, dense.nbytes, stream)
        d.do("wait", stream)
    return made


def fetched(v: View) -> np.ndarray:
    """A copy of a view in the host's memory; this waits for the stream."""
    first, last = v.span()
    raw, stream = np.empty(last - first, np.uint8), v.kind.streamer()()
    with on(v.device) as d:
        if raw.nbytes:
            d.do("get", raw.ctypes.data, first, raw.nbytes, stream)
        d.do("wait", stream)
    out: np.ndarray = arrays.as_numpy(replace(v, address=arrays.address(raw) + v.address - first, device=None)).copy()
    return out
