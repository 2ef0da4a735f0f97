"""Calls made again and again, and what they come to."""

from __future__ import annotations

import sys

import numpy as np


def f32(*shape):
    return np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)


def warm(f, *args, **keywords):
    """The result, once the front knows the call."""
    f(*args, **keywords)
    f(*args, **keywords)
    return f(*args, **keywords)


def python_calls(f):
    """How many Python functions `f()` calls."""
    seen = []
    sys.setprofile(lambda frame, event, _: seen.append(frame.f_code.co_name) if event == "call" else None)
    try:
        f()
    finally:
        sys.setprofile(None)
    return seen[1:]  # the first is f itself


def outcome(f, *args, **keywords):
    """What a call comes to: its results, or its error."""
    try:
        found = f(*args, **keywords)
    except Exception as e:
        return type(e), str(e).replace("Operator.__call__()", "Operator._general()")
    several = found if isinstance(found, tuple) else (found,)
    return [(type(r), r.dtype, r.shape, r.tobytes()) for r in several]
