"""The native front of an operator's calls: machine code that knows calls of looks seen before (`entry.ll`).

It stands where `Operator.__call__` did, and passes on to that whatever it does not know for sure. So nothing depends on it:
where this interpreter or this NumPy is not as it expects, there is none, and the log says why.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from polyop.ir.errors import InternalError, PolyopError
from polyop.runtime import arrays, cpu, entry_load, entry_sizes, entry_table, forks, threads
from polyop.runtime.call import CallPlan
from polyop.runtime.entry_load import Code
from polyop.runtime.entry_plan import Words, record
from polyop.runtime.entry_sizes import HEAD, Array
from polyop.runtime.entry_table import Front

log = logging.getLogger("polyop")

Record = tuple[Any, ...]  # a look or None, a plan, and what that speaks of


class Plan(Protocol):
    """What a look leaves behind."""

    @property
    def has_words(self) -> bool: ...

    @property
    def has_torch(self) -> bool: ...


LOOKS = 4  # of an outline, after which it gets a record
_SIZES = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_char_p, ctypes.c_void_p)
_lock = forks.rlock()
_found: list[Code | None] = []


def entry(owner: type) -> Code | None:
    """The code, which from now on is `owner.__call__`; None where there can be none.

    Notes   What the code does not know it passes on to `owner._general`.
    """
    if not _found:
        with _lock:
            if not _found:
                _found.append(_entry(owner))
    return _found[0]


def _entry(owner: Any) -> Code | None:
    """The code, in its place; None if there can be none, and the log says why."""
    try:
        code = entry_load.load(owner._general, owner.__call__.__doc__ or "")
    except (entry_load.UnfitError, PolyopError, ImportError, AttributeError, RuntimeError, ValueError) as e:
        log.debug("calls take the way through Python: %s", e)
        return None
    method = ctypes.pythonapi.PyDescr_NewMethod
    method.restype, method.argtypes = ctypes.py_object, (ctypes.py_object, ctypes.c_void_p)
    type.__setattr__(owner, "__call__", method(owner, ctypes.addressof(code.call)))
    return code


def remember(code: Code, front: Front, plan: Plan, say: Callable[[Any, Sequence[Any]], Words | None], values: Sequence[Any],
             args: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
    """Let the next call of this look go straight to `plan`.

    say      what puts it into words
    values   those of all parameters, then the arrays of `out`: what `plan` was just carried out for
    """
    if not plan.has_words or (plan.has_torch and not entry_load.knows_torch(code)):
        return
    look = code.look(front, *args, **keywords)
    if look is None or entry_table.has(front[0], look):
        return  # what is in the way is nothing that a look shows
    words = say(plan, values)
    if words is not None:
        entry_table.put(front[0], (look, words.plan, *words.objects, _kept(plan, values)))


def vary(code: Code, front: Front, record: Record, args: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
    """Let calls of this outline go straight to `record`, whatever their sizes, once it had many looks.

    A table may lose it for those of other outlines, or it may be none for calls such as this one: then it is put down again, at
    once in the first case and after twice as many looks in the second.
    """
    outline = code.outline(front, *args, **keywords)
    if outline is None:
        return
    if len(front[2]) >= entry_table.MOST:
        front[2].clear()
    seen = front[2][outline] = front[2].get(outline, 0) + 1
    if seen >= LOOKS and (not seen & (seen - 1) or not entry_table.has(front[0], outline)):
        entry_table.put(front[0], (outline, *record[1:]))


def general(code: Code, front: Front, plan: CallPlan, values: Sequence[Any], args: tuple[Any, ...],
            keywords: Mapping[str, Any]) -> Record | None:
    """The record by which `plan` serves for calls of all sizes of this form; None if it cannot be.

    values   as for `remember`
    """
    if min(plan.sizes.values(), default=0) < 1 or (plan.has_torch and not entry_load.knows_torch(code)):
        return None
    look = code.look(front, *args, **keywords)
    if look is None:
        return None
    try:
        made = _varied(plan, values, look, front[1])
    except PolyopError as e:
        log.error("calls of %s with new sizes take the way through Python: this is a bug of polyop: %s", plan.op.name, e)
        return None
    return (None, *made, _kept(plan, values)) if made is not None else None


def _varied(plan: CallPlan, values: Sequence[Any], look: bytes, info: bytes) -> tuple[Any, ...] | None:
    """What a record has behind its outline: the plan, the objects, the code that fits the plan to sizes; None if it cannot be.

    Raises InternalError, if that code makes something else of the very call that the plan was made for.
    """
    words = record(plan, values, outline=True)
    text = words and entry_sizes.text(plan, _arrays(np.frombuffer(look, np.int64).tolist(), info, values), words.places)
    if words is None or text is None:
        return None
    loaded = _linked(text)
    address = loaded.addresses[entry_sizes.NAME]
    made = words.plan[:8 * HEAD - 8] + address.to_bytes(8, "little") + words.plan[8 * HEAD:]
    trial = ctypes.create_string_buffer(made, len(made))
    if _SIZES(address)(look, trial):
        return None  # this very call is none for it: its result is empty
    if trial.raw != made:
        raise InternalError("entry: sizes are not what binding makes of them")
    return made, *words.objects, loaded


@lru_cache(maxsize=256)
def _linked(text: str) -> cpu.Loaded:
    """Code of entry_sizes.py. It depends on nothing else, so many records share it.

    It is straight, and as fast if LLVM does as little as it can, which takes 2.5 ms, not 6.
    """
    return entry_load.assembled(entry_sizes.NAME, text, (entry_sizes.NAME,), level=0)


def _kept(plan: Plan, values: Sequence[Any]) -> Any:
    """What the words of a look point to."""
    return plan, threads.setting, [(type(v), v.dtype if isinstance(v, np.ndarray) else None) for v in values]


def _arrays(look: Sequence[int], info: bytes, values: Sequence[Any]) -> dict[int, Array]:
    """The arrays of a look by their position among the values."""
    by_value, found, at = np.frombuffer(info, np.int64)[3::2].tolist(), {}, 3
    for k in range(look[2] >> 1):
        if not look[at]:
            at += 1
        elif k < len(by_value) and by_value[k]:
            at += 2
        elif isinstance(values[k], np.ndarray) or arrays.is_torch(values[k]):
            is_numpy = isinstance(values[k], np.ndarray)
            sizes = look[at + 3: at + 3 + 2 * look[at + 2]]
            shift = values[k].dtype.itemsize.bit_length() - 1 if is_numpy else 0
            found[k] = Array(at + 2, shift, tuple(sizes[::2]), tuple(sizes[1::2]))
            at += 3 + len(sizes)
        else:
            at += 1
    return found
