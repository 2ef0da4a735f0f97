"""`einsum` equations -> operator text."""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass

from polyop.dsl.pairs import order
from polyop.ir.dtypes import BOOL, DType, accumulator, promote
from polyop.ir.errors import UserError, fail
from polyop.ir.span import Source, Span


@dataclass(frozen=True, slots=True)
class Term:
    """An operand: its labels in order (`e0`, `e1` stand for `...`), and the positions that read it."""

    name: str
    labels: tuple[str, ...]
    read: str


def einsum_text(equation: str, shapes: Sequence[tuple[int, ...]], dtypes: Sequence[DType]) -> str:
    """The operator `einsum` that computes `equation` as `numpy.einsum` does.

    Operands are called X0, X1, ..., the result `out`; a label `i` runs over the size `N_i`. Sizes stay symbolic, except
    that a dimension of size 1 that meets a larger one is read at 0 throughout. Three operands and more are contracted in
    pairs, in the cheapest order (`polyop.dsl.pairs`).

    Raises  UserError E150 (the equation), E151 (operands that do not fit it).
    """
    inputs, output, given = _parse(equation, len(shapes))
    ranks = [_rest_rank(labels, len(shape), n, given) for n, (labels, shape) in enumerate(zip(inputs, shapes, strict=True))]
    most = max(ranks, default=0)
    rest = tuple(f"e{d}" for d in range(most))
    labelled = [_write_rest(labels, rest[most - rank :]) for labels, rank in zip(inputs, ranks, strict=True)]
    if output is None:
        every = [x for labels in labelled for x in labels if x not in rest]
        result = rest + tuple(sorted(x for x in set(every) if every.count(x) == 1))
    else:
        if rest and "..." not in output:
            raise _wrong(equation, given, "the result needs `...`, since operands have it")
        result = _write_rest(output, rest)
    extents = _extents(labelled, shapes, given)
    known = {x for labels in labelled for x in labels}
    for x in result:
        if x not in known:
            raise _wrong(equation, given, f"`{x}` of the result is in no operand")
    header, terms = _operands(labelled, shapes, extents)
    dtype = dtypes[0]
    for t in dtypes[1:]:
        dtype = promote(dtype, t)
    dims = f"[{', '.join(f'N_{x}' for x in result)}]" if result else ""
    body = _body(terms, result, extents, dtype)
    params = ", ".join(f"{name}: {t}[{dims_}]" for (name, dims_), t in zip(header, dtypes, strict=True))
    return f"op einsum({params}) -> (out: {dtype}{dims}) {{\n" + "\n".join(f"    {line}" for line in body) + "\n}\n"


# --- the equation ----------------------------------------------------------------------------------------------------


def _wrong(equation: str, given: Source, message: str, at: int = 0, width: int = 0) -> UserError:
    span = Span(given, 1, at + 1, 1, at + 1 + (width or max(1, len(given.text))))
    return fail("E150", message, span)


def _parse(equation: str, count: int) -> tuple[list[tuple[str, ...]], tuple[str, ...] | None, Source]:
    given = Source("<einsum>", "".join(c if c.isprintable() else "?" for c in equation))
    text = given.text
    for at, c in enumerate(text):
        if c not in string.ascii_letters + " ,.->":
            raise _wrong(equation, given, f"`{c}` is no label; labels are single letters", at, 1)
    squeezed = text.replace(" ", "")
    left, arrow, right = squeezed.partition("->")
    if "-" in left + right or ">" in left + right:
        raise _wrong(equation, given, "one `->` leads to the result")
    if "," in right:
        raise _wrong(equation, given, "there is one result")
    inputs = [_labels(part, equation, given) for part in left.split(",")]
    output = _labels(right, equation, given) if arrow else None
    if output is not None and len(set(output)) < len(output):
        twice = next(x for x in output if output.count(x) > 1)
        raise _wrong(equation, given, f"`{twice}` stands twice in the result")
    if len(inputs) != count:
        raise fail("E151", f"the equation has {len(inputs)} operands, and {count} are given", Span(given, 1, 1, 1, len(text) + 1))
    return inputs, output, given


def _labels(part: str, equation: str, given: Source) -> tuple[str, ...]:
    before, dots, after = part.partition("...")
    if "." in before + after:
        raise _wrong(equation, given, "`...` is three dots, once in each operand")
    return (*before, "...", *after) if dots else tuple(before)


def _write_rest(labels: tuple[str, ...], rest: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(y for x in labels for y in (rest if x == "..." else (x,)))


def _rest_rank(labels: tuple[str, ...], rank: int, n: int, given: Source) -> int:
    fixed = sum(x != "..." for x in labels)
    if rank < fixed or (rank > fixed and "..." not in labels):
        shown = "".join(labels)
        raise fail(
            "E151", f"operand {n} has {rank} dimensions, and `{shown}` names {fixed}", Span(given, 1, 1, 1, len(given.text) + 1)
        )
    return rank - fixed


def _extents(labelled: Sequence[tuple[str, ...]], shapes: Sequence[tuple[int, ...]], given: Source) -> dict[str, int]:
    """How many values each label takes; a 1 gives way to any other size, but not on a diagonal."""
    out: dict[str, int] = {}
    first: dict[str, int] = {}
    for n, (labels, shape) in enumerate(zip(labelled, shapes, strict=True)):
        own: dict[str, int] = {}
        for x, size in zip(labels, shape, strict=True):
            if own.setdefault(x, size) != size:
                raise fail("E151", f"`{x}` is {own[x]} and {size} in operand {n}", Span(given, 1, 1, 1, len(given.text) + 1))
            if out.get(x, 1) != 1 and size not in (1, out[x]):
                raise fail("E151", f"`{x}` is {out[x]} in operand {first[x]} and {size} in operand {n}",
                           Span(given, 1, 1, 1, len(given.text) + 1))
            if x not in out or size != 1:
                out[x], first[x] = size, n
    return out


# --- the operator ----------------------------------------------------------------------------------------------------


def _operands(labelled: Sequence[tuple[str, ...]], shapes: Sequence[tuple[int, ...]],
              extents: dict[str, int]) -> tuple[list[tuple[str, str]], list[Term]]:
    """The parameters' shapes as text, and the terms; a dimension that is broadcast has extent 1 and is read at 0."""
    header: list[tuple[str, str]] = []
    terms: list[Term] = []
    for n, (labels, shape) in enumerate(zip(labelled, shapes, strict=True)):
        alive = [size == extents[x] for x, size in zip(labels, shape, strict=True)]
        dims = ", ".join(f"N_{x}" if a else "1" for x, a in zip(labels, alive, strict=True))
        places = ", ".join(x if a else "0" for x, a in zip(labels, alive, strict=True))
        header.append((f"X{n}", dims))
        mine = tuple(dict.fromkeys(x for x, a in zip(labels, alive, strict=True) if a))
        terms.append(Term(f"X{n}", mine, f"X{n}[{places}]" if labels else f"X{n}"))
    return header, terms


def _body(terms: list[Term], result: tuple[str, ...], extents: dict[str, int], dtype: DType) -> list[str]:
    lines: list[str] = []
    alive = dict(enumerate(terms))
    pairs = order([frozenset(t.labels) for t in terms], frozenset(result), extents)
    for left, right in pairs[:-1]:
        a, b = alive.pop(left), alive.pop(right)
        needed = {*result, *(x for t in alive.values() for x in t.labels)}
        both = tuple(dict.fromkeys(a.labels + b.labels))
        kept = tuple(x for x in both if x in needed)
        name = f"T{len(lines)}"
        read = f"{name}[{', '.join(kept)}]" if kept else name
        lines.append(f"{read} {_sign(kept, both, dtype)} {_product(a.read, b.read, dtype)}")
        alive[len(terms) + len(lines) - 1] = Term(name, kept, read)
    terms = list(alive.values())
    both = tuple(dict.fromkeys(x for t in terms for x in t.labels))
    product = terms[0].read if len(terms) == 1 else _product(terms[0].read, terms[1].read, dtype)
    place = f"[{', '.join(result)}]" if result else ""
    sign = _sign(result, both, dtype)
    wide = accumulator(dtype)
    if lines and wide != dtype:  # temporaries hold the accumulator's dtype
        if sign == "=":
            return [*lines, f"out{place} = {dtype}({product})"]
        return [*lines, f"out: {wide} {place or '[]'} {sign} {product}"]
    return [*lines, f"out{place} {sign} {product}"]


def _product(a: str, b: str, dtype: DType) -> str:
    return f"{a} and {b}" if dtype == BOOL else f"{a} * {b}"


def _sign(kept: tuple[str, ...], both: tuple[str, ...], dtype: DType) -> str:
    if set(both) <= set(kept):
        return "="
    return "or=" if dtype == BOOL else "+="
