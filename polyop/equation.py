"""`polyop.einsum`: an equation and operands, as `numpy.einsum` takes them."""

from __future__ import annotations

import string
from typing import Any

from polyop.dsl.einsum import einsum_text
from polyop.ir.errors import fail
from polyop.ir.options import Options
from polyop.operator import Operator
from polyop.program import op
from polyop.runtime import arrays

_LABELS = string.ascii_letters
_KEPT = 1024  # equations that are remembered
_made: dict[str, Operator] = {}  # by their texts
_found: dict[Any, Operator] = {}  # by the equation, and dtype and shape of each operand, as these say so themselves


def einsum(equation: Any, *operands: Any, out: Any = None) -> Any:
    """The sum of products that `equation` says, such as `einsum("bhid,bhjd->bhij", q, k)`.

    Every form of numpy.einsum: implicit output, `...`, diagonals, traces, broadcasting, scalars, and operands each followed
    by a list of integer labels. One compile serves all shapes of the same equation.

    Raises  UserError E150, E151, if the equation is wrong or the operands do not fit it.
    """
    if not isinstance(equation, str):
        equation, operands = _from_lists(equation, operands)
    found: Operator | None = None
    try:
        key = equation, *[(x.dtype, x.shape) for x in operands]
        found = _found.get(key)
    except (AttributeError, TypeError):  # what is handed over by a protocol alone, and what is no array
        key = ()
    if found is None:
        found = _find(equation, operands, key)
    return found(*operands) if out is None else found(*operands, out=out)


def _find(equation: str, operands: tuple[Any, ...], key: tuple[Any, ...]) -> Operator:
    """The operator that carries out `equation`, remembered by `key`, if that is not empty."""
    views = [arrays.view(x, f"operand {n}", None) for n, x in enumerate(operands)]
    key = key or (equation, *[(v.dtype, v.shape) for v in views])
    found = _found.get(key)
    if found is not None:
        return found
    text = einsum_text(equation, tuple(v.shape for v in views), tuple(v.dtype for v in views))
    if len(_found) >= _KEPT:
        _found.clear()
        _made.clear()
    found = _made.get(text) or op(text, options=Options())
    _made[text] = _found[key] = found
    return found


def _from_lists(first: Any, others: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
    """`A, ([0, 1], B, [1, 2], [0, 2])` as an equation and its operands."""
    if isinstance(first, bytes):
        raise fail("E150", f"the equation is a str, got {first!r}")
    given, operands, terms = (first, *others), [], []
    pairs, rest = given[: len(given) // 2 * 2], given[len(given) // 2 * 2 :]
    for value, labels in zip(pairs[::2], pairs[1::2], strict=True):
        operands.append(value)
        terms.append(_term(labels))
    arrow = f"->{_term(rest[0])}" if rest else ""
    return ",".join(terms) + arrow, tuple(operands)


def _term(labels: Any) -> str:
    out = []
    if isinstance(labels, str) or not hasattr(labels, "__iter__"):
        raise fail("E150", f"expected a list of labels after each operand, got {type(labels).__name__}")
    for x in labels:
        if x is Ellipsis:
            out.append("...")
        elif isinstance(x, int) and not isinstance(x, bool) and 0 <= x < len(_LABELS):
            out.append(_LABELS[x])
        else:
            raise fail("E150", f"{x!r} is no label; labels are 0 to {len(_LABELS) - 1}, or ...")
    return "".join(out)
