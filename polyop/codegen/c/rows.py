"""What is asked of the rows of a unit's results, once for each row and not for each element, as C text.

    for q (rows 16), i, v (atom) { if S > i_o + i: c[q, i, v] = f(c[q, i, v]) }

    for (int pop_q = 0; pop_q < 2; ++pop_q) {                                        the rows of which a lane has elements
        i = ..;
        if (S > i_o + i) { for q { for (int pop_e = 0; pop_e < 2; ++pop_e) { pop_r = pop_e + 2 * pop_q; .. } } }
    }

Written out, each test is a branch or a choice for compilers to go through, and 128 channels have 64 elements in a lane.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from polyop.codegen.c.digits import digits
from polyop.codegen.c.index import condition, natural
from polyop.codegen.c.lanes import lane_of, of_element, of_row, rows_of
from polyop.codegen.c.lines import unrolled
from polyop.codegen.c.results import place_of_row
from polyop.codegen.c.scope import Printed, Scope
from polyop.codegen.gpu.held import Held, Rows
from polyop.codegen.gpu.inside import below
from polyop.codegen.nested import nested
from polyop.ir.errors import UnsupportedError
from polyop.ir.expr import Affine, affine, bounds, loads, names
from polyop.ir.loops import For, If, Kind, Space, Store

_ROW, _ELEMENT = "pop_q", "pop_e"  # which row of those that a lane has, and which element of the row


def lines(n: For, scope: Scope, printed: Printed) -> list[str] | None:
    """The text of loops over tiles, if a test is asked of their rows; None, if there is none."""
    found = _store(n)
    if n.kind != Kind.ROWS or found is None:
        return None
    loops, s, tests = found
    h, r = _rows(s, scope)
    if h is None or r is None or {f.index for f in loops if f.kind == Kind.ATOM} != h.loops:
        return None
    columns, over = {i for i, _ in h.column}, [(f.index, f.end, f.step) for f in loops if f.kind == Kind.ROWS]
    asked = frozenset().union(*(names(t) for t in tests if not names(t) & columns))
    around = [x for x in over if x[0] in asked]
    inner = over[len(around):]
    of_rows = [t for t in tests if not names(t) & (columns | {i for i, *_ in inner})]
    if not of_rows or not inner or over != [*around, *inner]:
        return None
    mine, scope = of_row(h, r), replace(scope, row=_ROW)
    register = natural(of_element(r, len(mine)), {"row": _ROW, "element": _ELEMENT})
    column = natural(h.fragment.column, {"lane": lane_of(r.warp, scope), "reg": "pop_r"})
    element = [f"const int pop_r = {register};", *(f"const int {scope.names[i]} = {at};" for i, at in digits(h.column, column)),
               *_asked([t for t in tests if t not in of_rows], printed(s, scope), scope)]
    row = _asked(of_rows, written([*inner, (_ELEMENT, len(mine), 1)], element, scope), scope)
    return written([*around, (_ROW, r.fragment.regs, 1)], [place_of_row(r, scope, _ROW), *row], scope)


def _store(n: For) -> tuple[tuple[For, ...], Store, tuple[Affine, ...]] | None:
    """The loops over tiles and their elements, the one store in them, and what is asked before it, bounds included."""
    loops, body = nested((n,), Kind.ROWS, Kind.ATOM)
    tests: tuple[Affine, ...] = ()
    while len(body) == 1 and isinstance(one := body[0], If) and not one.other:
        tests, body = (*tests, *one.tests), one.then
    if len(body) != 1 or not isinstance(s := body[0], Store) or any(f.kind == Kind.ROWS and not f.is_full for f in loops):
        return None
    limits = (below(f, b) for f in loops if not f.is_full for b in bounds(f.upper) if b != affine(f.end))
    return loops, s, (*limits, *tests)


def _rows(s: Store, scope: Scope) -> tuple[Held | None, Rows | None]:
    """The results that `s` changes element by element, and their rows; None, if it does something else."""
    h, tiles = scope.tiles.held.get(s.target.source), scope.tiles
    is_other = s.stmt in {*tiles.products, *tiles.handed} or not loads(s.expr)  # and elements without a value are nobody's
    if h is None or is_other or h.fragment is not h.atom.c_map or scope.buffers[s.target.source].space != Space.REG:
        return None, None
    try:
        return h, rows_of(h)
    except UnsupportedError:
        return None, None


def _asked(tests: Iterable[Affine], inside: list[str], scope: Scope) -> list[str]:
    text = " && ".join(dict.fromkeys(condition(t, scope.names) for t in tests))
    return [f"if ({text}) {{", *("    " + x for x in inside), "}"] if text else inside


def written(loops: Iterable[tuple[str, int, int]], inside: list[str], scope: Scope) -> list[str]:
    """Loops that are written out around `inside`, outermost first: an index, its end and its step."""
    for i, end, step in reversed(list(loops)):
        inside = unrolled(scope.names.get(i, i), end, inside, step)
    return inside
