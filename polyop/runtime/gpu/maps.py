"""What the driver tells an engine of a tensor, for the addresses that calls have."""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass, field
from typing import Any

from polyop.ir.module import Boxes
from polyop.runtime import forks
from polyop.runtime.boxes import WORDS, View, view_of
from polyop.runtime.gpu.driver import Device, on

MAP = WORDS + 1
"""Values of 8 bytes that a kernel takes for each tensor: the words, and whether they say something."""

FORMAT = f"{8 * MAP}s"
"""How `struct` packs them."""

FORMATTED = struct.Struct(FORMAT)

_NOTHING = bytes(8 * MAP)

_KNOWN = 256  # addresses that are remembered
_NEAR = 16    # of them machine code has room for at first
_TYPES = {1: 0, 2: 1, 4: 2, 8: 4}            # CUtensorMapDataType by bytes: unsigned integers, whose zero is everybody's
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}     # CUtensorMapSwizzle
_LINES_OF_L2 = 2                             # CU_TENSOR_MAP_L2_PROMOTION_L2_128B
_ALIGN = 64                                  # bytes, of what the driver writes

_lock = forks.rlock()  # the driver encodes without the interpreter's lock, so other threads come in between


@dataclass(frozen=True, eq=False, slots=True)
class Map:
    """One tensor of a call: all but its address, which stands at `slot` of the call's values.

    known   its values by address; `near`: the same for `launch.ll`, if it asks
    """

    device: Device
    boxes: Boxes
    element: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    slot: int
    known: dict[int, bytes] = field(default_factory=dict, repr=False)
    near: list[Near] = field(default_factory=list, repr=False)

    def at(self, address: int) -> bytes:
        """The values for the tensor at this address: zeros where it does not lie as the engine needs it."""
        found = self.known.get(address)
        return self._added(address) if found is None else found

    def _added(self, address: int) -> bytes:
        """The same, and it is known from now on."""
        with _lock:
            found = self.known.get(address)
            if found is None:
                if len(self.known) >= _KNOWN:
                    self.known.clear()
                    for near in self.near:
                        near.head[0] = 0
                v = view_of(self.boxes, self.element, address, self.shape, self.strides)
                found = self.known[address] = _encoded(self.device, v) if v else _NOTHING
                for near in self.near:
                    near.put(address, found)
            return found

    def nearby(self) -> int:
        """The address of `near`, which stays where it is."""
        with _lock:
            if not self.near:
                self.near.append(Near())
                for address, values in self.known.items():
                    self.near[0].put(address, values)
            return ctypes.addressof(self.near[0].head)


class Near:
    """Addresses, and the values of each, in memory: `head` says how many, and where both stand.

    Machine code reads it with the interpreter's lock held, and that may change hands between any two lines here: so room that
    grows is new memory, of which `head` tells at once, and an address counts when its values are there. One thread writes at
    a time.
    """

    def __init__(self) -> None:
        self.head = (ctypes.c_uint64 * 3)()
        self.room = 0
        self.addresses: Any = b""
        self.values: Any = b""

    def put(self, address: int, values: bytes) -> None:
        """One more, of an address that is not there."""
        count = self.head[0]
        if count == self.room:
            self.room = max(_NEAR, 2 * self.room)
            addresses = ctypes.create_string_buffer(bytes(self.addresses)[:8 * count], 8 * self.room)
            values_ = ctypes.create_string_buffer(bytes(self.values)[:FORMATTED.size * count], FORMATTED.size * self.room)
            struct.pack_into("<QQ", self.head, 8, ctypes.addressof(addresses), ctypes.addressof(values_))
            self.addresses, self.values = addresses, values_
        struct.pack_into("<Q", self.addresses, 8 * count, address)
        FORMATTED.pack_into(self.values, FORMATTED.size * count, values)
        self.head[0] = count + 1


def _encoded(device: Device, v: View) -> bytes:
    """What the driver makes of a tensor; zeros if it makes nothing.

    Source  CUDA Driver API, cuTensorMapEncodeTiled
    """
    rank = len(v.shape)
    room = (ctypes.c_uint64 * (WORDS + _ALIGN // 8))()
    skipped = -ctypes.addressof(room) % _ALIGN
    with on(device) as d:
        encode = getattr(d.library, "cuTensorMapEncodeTiled", None)
        if encode is None:
            return _NOTHING
        longs, ints, steps = ctypes.c_uint64 * rank, ctypes.c_uint32 * rank, v.boxes.steps or (1,) * rank
        spans = [n * k for n, k in zip(v.boxes.box, steps, strict=True)]
        code = encode(ctypes.c_void_p(ctypes.addressof(room) + skipped), ctypes.c_int(_TYPES[v.element]), ctypes.c_uint32(rank),
                      ctypes.c_void_p(v.address), longs(*v.shape), longs(*v.strides), ints(*spans), ints(*steps),
                      ctypes.c_int(0), ctypes.c_int(_SWIZZLES[v.boxes.swizzle]), ctypes.c_int(_LINES_OF_L2), ctypes.c_int(0))
    return _NOTHING if code else struct.pack(f"<{MAP}Q", *room[skipped // 8:skipped // 8 + WORDS], 1)
