"""Registers without the dimensions that threads share out, and rows counted one by one, are followed; all else is refused."""

from __future__ import annotations

import logging
from dataclasses import replace

import islpy as isl
import pytest
from register_mutants import put
from test_nobodys import TARGETS, TEXTS, context, made, proved

from polyop.codegen.gpu import blocks
from polyop.codegen.gpu.blocks import prepared
from polyop.codegen.stepped import Follow, Step
from polyop.compiler import compile_op
from polyop.ir.dtypes import F32
from polyop.ir.expr import Affine, Apply, Const, Load, affine, loads, map_loads
from polyop.ir.loops import Buffer, For, If, Kind, LoopNest, Node, Space, Store, map_accesses, stores, walk
from polyop.ir.op import builtin_monoid
from polyop.ir.options import Options
from polyop.poly.verify.handed import CLAIM, difference, shares_out
from polyop.poly.verify.rewrites import follows

BOTH = [(text, name) for text in TEXTS for name in TARGETS]


def step(name: str, text: str, target_name: str) -> Step:
    (found,) = (s for s in prepared(proved(text, target_name))[1] if s.name == name)
    return found


@pytest.mark.parametrize(("text", "target_name"), BOTH)
def test_each_thread_has_its_part_of_the_registers(text: str, target_name: str) -> None:
    s = step("own", text, target_name)
    assert s.by == Follow.OWN and s.before.buffers != s.after.buffers
    assert shares_out(s.before, s.after).holds
    assert any(p.claim == CLAIM and p.holds for p in made(text, target_name).proofs)


@pytest.mark.parametrize(("text", "target_name"), BOTH)
def test_registers_that_are_shared_out_in_another_way_are_refused(text: str, target_name: str) -> None:
    s = step("own", text, target_name)
    registers = {b.name for b in s.after.buffers if b.space == Space.REG}
    for n in [n for n in stores(s.after.body) if registers & {n.target.source, *(x.source for x in loads(n.expr))}][:20]:
        def moved(x: Load) -> Load:
            return replace(x, index=tuple(p + 1 if isinstance(p, Affine) else p for p in x.index))

        def put_in(*new: Node, at: Node = n) -> str | None:
            return difference(s.before, replace(s.after, body=put(s.after.body, at, new)))

        assert put_in(), n.target
        assert put_in(n, n), n.target
        assert put_in(replace(n, expr=Const(7, n.expr.dtype))), n.target
        assert put_in(replace(n, atomic=not n.atomic)), n.target
        for x in (n.target, *loads(n.expr)):
            if x.source in registers and x.index:
                new = replace(n, target=moved(x)) if x is n.target else replace(
                    n, expr=map_loads(n.expr, lambda y, x=x: moved(y) if y == x else y))
                assert put_in(new), x
    for n in [n for n in walk(s.after.body) if isinstance(n, For) and n.kind in (Kind.THREADS, Kind.ATOM)][:20]:
        assert difference(s.before, replace(s.after, body=put(s.after.body, n, (replace(n, upper=n.upper - 1),))))
    for b in s.after.buffers:
        if b.space == Space.REG:
            for dims in ((*b.dims, (affine(2), 1)), b.dims[1:], tuple((e + 1, u) for e, u in b.dims)):
                if dims != b.dims:
                    other = tuple(replace(x, dims=dims) if x is b else x for x in s.after.buffers)
                    assert difference(s.before, replace(s.after, buffers=other)), b


@pytest.mark.parametrize(("text", "target_name"), [x for x in BOTH if x[0] != "scan"])
def test_rows_are_counted_one_by_one(text: str, target_name: str) -> None:
    nest, s = proved(text, target_name), step("counted", text, target_name)
    assert s.by == Follow.STORES and follows(s.before, s.after, context(nest), strict=True).holds
    was = {n.index for n in walk(s.before.body) if isinstance(n, For) and n.kind == Kind.ROWS and n.step > 1}
    mine = [n for n in walk(s.after.body) if isinstance(n, For) and n.index in was][:8]
    assert mine and all(n.step == 1 for n in mine)
    for n in mine:
        inside = [x for x in stores((n,)) if any(n.index in str(p) for p in x.target.index)][:1]
        wrong: list[tuple[Node, Node]] = [(n, replace(n, upper=n.upper - 1)), (n, replace(n, step=2)),
                                          (n, replace(n, extent=(n.extent or 0) + 1, upper=n.upper + 1))]
        wrong += [(x, replace(x, target=replace(x.target, index=tuple(
            p + affine(n.index) if isinstance(p, Affine) and n.index in str(p) else p for p in x.target.index)))) for x in inside]
        for at, new in wrong:
            other = replace(s.after, body=put(s.after.body, at, (new,)))
            assert not follows(s.before, other, context(nest)).holds, (n.index, new)


@pytest.mark.parametrize("name", sorted(blocks.NEEDED))
def test_what_the_printer_takes_for_granted_is_not_printed_if_it_is_not_followed(
        name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    right = made("product", "cuda:sm_80")
    real = getattr(blocks, name)

    def broken(nest: LoopNest) -> LoopNest:
        new = real(nest)
        assert isinstance(new, LoopNest)
        at = next(s for s in stores(new.body) if new.buffer(s.target.source).space == Space.REG)
        return replace(new, body=put(new.body, at, ()))

    monkeypatch.setattr(blocks, name, broken)
    with caplog.at_level(logging.ERROR, "polyop"):
        found = compile_op(right.op, right.layout, right.target, Options())
    assert f"polyop bug: what `{name}` makes of" in caplog.text
    assert found.rung != "tuned" and any(f"what `{name}` makes of its loops is not followed" in x for x in found.notes)


# --- small nests ----------------------------------------------------------------------------------------------------------

I, J, P = map(affine, "ijp")


def threads(index: str, extent: int, weight: int, *body: Node) -> For:
    return For(index, Affine(), affine(extent), body, kind=Kind.THREADS, extent=extent, weight=weight)


def side(index: str, *body: Node) -> For:
    return For(index, Affine(), affine(4), body, kind=Kind.ATOM, extent=4)


def store(target: Load, e: Load, stmt: str = "S") -> Store:
    return Store(stmt, (), None, (), target, None, e)


def at(name: str, *index: Affine) -> Load:
    return Load(name, index, F32)


def nest(*body: Node) -> LoopNest:
    """`r` has two dimensions, of four elements each."""
    four = (affine(4), 1)
    buffers = (Buffer("X", F32, (four, four), Space.TENSOR), Buffer("Y", F32, (four, four), Space.TENSOR),
               Buffer("r", F32, (four, four), Space.REG), Buffer("q", F32, (four,), Space.REG))
    return LoopNest("small", (), (), buffers, body)


ROW = threads("i", 4, 1, store(at("r", I, P), at("X", I, P)))
TILE = side("i", side("j", store(at("r", I, J), at("X", I, J))))
SHARED_OUT = {
    "its own row": nest(ROW, threads("i", 4, 1, store(at("Y", I, P), at("r", I, P)))),
    "by two digits": nest(threads("i", 4, 4, threads("j", 4, 1, store(at("r", I, J), at("X", I, J))))),
    "a column of a tile, which its statement tells": nest(
        TILE, For("p", Affine(), affine(4), (side("i", store(at("q", I), at("r", I, P), "T")),))),
}
NOT_SHARED_OUT = {
    "another thread's": nest(ROW, threads("i", 4, 1, store(at("Y", I, P), at("r", I + 1, P)))),
    "the first thread's": nest(ROW, threads("i", 4, 1, store(at("Y", I, P), at("r", Affine(), P)))),
    "one that no thread around it has": nest(ROW, For("i", Affine(), affine(4), (store(at("Y", I, P), at("r", I, P)),))),
    "another digit": nest(ROW, threads("i", 4, 4, store(at("Y", I, P), at("r", I, P)))),
    "so many digits": nest(ROW, threads("i", 2, 1, store(at("Y", I, P), at("r", I, P)))),
    "the other way round": nest(threads("i", 4, 4, threads(
        "j", 4, 1, store(at("r", I, J), at("X", I, J)), store(at("r", J, I), at("X", I, J))))),
    "a diagonal": nest(threads("i", 4, 1, store(at("r", I, I), at("X", I, I)))),
    "a column of a tile that is written": nest(
        TILE, For("p", Affine(), affine(4), (side("i", store(at("r", I, P), at("X", I, P), "T")),))),
    "two columns of a tile in one statement": nest(TILE, For("p", Affine(), affine(4), (side("i", Store(
        "T", (), None, (), at("q", I), None, Apply("add", (at("r", I, P), at("r", I, P * -1 + 3)), F32))),))),
}


def without(n: LoopNest) -> LoopNest:
    """`n`, whose registers have lost what some place of them has of threads, as a pass may do it without a look at the others."""
    return blocks.own(n)


@pytest.mark.parametrize("what", SHARED_OUT)
def test_registers_are_shared_out_by_digits(what: str) -> None:
    n = SHARED_OUT[what]
    assert without(n) != n and difference(n, without(n)) is None


@pytest.mark.parametrize("what", NOT_SHARED_OUT)
def test_registers_of_others_are_not_lost(what: str) -> None:
    n = NOT_SHARED_OUT[what]
    assert without(n) != n and difference(n, without(n))


def test_a_test_and_what_is_asked_stays() -> None:
    n = SHARED_OUT["its own row"]
    new = without(n)
    asked = replace(new, body=(If((P,), new.body),))
    assert difference(n, asked) and difference(n, replace(new, body=new.body[:1]))
    assert difference(n, replace(new, sizes=("N",)))
    assert difference(n, replace(new, body=map_accesses(new.body, lambda x: replace(x, guard=(P,)))))


@pytest.mark.parametrize("said", ["later", "atomic", "outlasts"])
def test_when_a_store_is_carried_out_stays_as_it_was(said: str) -> None:
    s = Store("S", (), None, (), at("Y", I, P), builtin_monoid("add", F32), at("X", I, P))
    before = nest(threads("i", 4, 1, For("p", Affine(), affine(4), (s,))))
    other = replace(s, **{said: True})
    after = nest(threads("i", 4, 1, For("p", Affine(), affine(4), (other,))))
    everywhere = isl.Set("{ : }").params()
    assert follows(before, before, everywhere).holds and follows(before, replace(after, body=before.body), everywhere).holds
    assert not follows(before, after, everywhere).holds and not follows(after, before, everywhere).holds
