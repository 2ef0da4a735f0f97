"""Who wrote what is read, against isl's own dataflow analysis; and positions in digits."""

from __future__ import annotations

from random import Random

import islpy as isl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyop.ir.expr import Affine, affine, evaluate, quasi
from polyop.poly.scop import extract
from polyop.poly.sets import quota
from polyop.poly.verify.accesses import Accesses
from polyop.poly.verify.digits import digits, limits, quotient, radices
from polyop.poly.verify.flow import Flow, flow, maps, union
from polyop.poly.verify.frame import IN, OUT, Frame
from polyop.poly.verify.structure import malformed

from . import nests as n
from .mutants import mutant
from .test_verify import RIGHT

MUTANTS = 10


def by_isl(a: Accesses) -> Flow:
    """The same by isl's dataflow analysis, read by read and in plain positions."""
    space, depth = a.context.get_space(), 1 + max((len(s.time) for s in a.sites), default=0)
    found = Flow({}, {})
    for r in a.reads:
        sources = [s for s in a.writers(a.memory(r.load.source)) if s.store.reduce is None]
        writes = [a.element(s.frame, s, s.store.target).intersect_domain(s.domain) for s in sources]
        times = [(s.frame, [affine(0), *map(affine, s.time)], s.domain) for s in sources]
        times.append((r.frame, [affine(0), *map(affine, r.site.time)] if r.site else [affine(1)], r.place.domain()))
        order = [f.function("", (*at, *[Affine()] * (depth - len(at)))).reset_tuple_id(OUT).intersect_domain(d)
                 for f, at, d in times]
        info = isl.UnionAccessInfo.from_sink(isl.UnionMap.from_map(r.place)).set_must_source(union(space, writes))
        result = info.set_schedule_map(union(space, order)).compute_flow()
        found.base[r.frame.name] = result.get_must_dependence().reverse()
        for m in maps(result.get_must_no_source()):
            found.unset[m.get_tuple_name(IN) or ""] = m
    return found


def differences(a: Accesses) -> list[str]:
    ours, theirs = flow(a), by_isl(a)
    wrong = []
    for r in a.reads:
        name = r.frame.name
        if not ours.base[name].is_equal(theirs.base[name]):
            wrong.append(f"{r.load} of {name}: {ours.base[name]}, expected {theirs.base[name]}")
        nothing = isl.Map.empty(r.place.get_space())
        if not ours.unset.get(name, nothing).is_equal(theirs.unset.get(name, nothing)):
            wrong.append(f"{r.load} of {name} unset: {ours.unset.get(name)}, expected {theirs.unset.get(name)}")
    return wrong


@pytest.mark.parametrize("name", RIGHT)
def test_the_last_write_is_the_one_that_isl_finds(name):
    op, loops = RIGHT[name]
    scop, random = extract(op), Random(name)
    for damaged in (loops, *(mutant(loops, random) for _ in range(MUTANTS))):
        if not malformed(scop, damaged):
            with quota(20_000_000, name):
                assert not differences(Accesses(scop, damaged, scop.context)), damaged


def test_a_tiled_write_and_a_plain_read_meet_in_digits():
    a = Accesses(extract(n.MATMUL), n.MATMUL_PACKED, extract(n.MATMUL).context)
    written = next(s for s in a.sites if s.store.origin is None and s.store.target.source == "C")
    assert limits(written) == {"m_r": 800, "n_r": 8, "n_v": 64, "m_p": 6}
    rows, columns = a.index(written.frame, written, written.store.target)
    assert radices([(rows, {"m_r": 800, "m_p": 6})]) == (1, 6, 4800)
    assert radices([(columns, {"n_r": 8, "n_v": 64})]) == (1, 64, 512)
    assert digits(affine("i"), (1, 64, 512), {}) == digits(affine("i"), (1, 64, 512), {"i": 1000})
    assert list(map(str, digits(columns, (1, 64, 512), {"n_r": 8, "n_v": 64}))) == ["n_c", "n_r", "n_v"]


@pytest.mark.parametrize(("index", "known"), [
    (affine("a") * 6 + affine("b"), {"b": 7}),                        # digits overlap
    (affine("a") * 6 + affine("b"), {}),                              # nothing is known of b
    (affine("a") * 6 + affine("b") * 4 + affine("c"), {"b": 1, "c": 4}),  # 4 does not divide 6
    (affine("N") + affine("a") * 6 + affine("b"), {"b": 6}),          # starts anywhere
])
def test_positions_that_are_no_digits_stay_whole(index, known):
    assert radices([(index, known)]) == (1,)


@st.composite
def chains(draw):
    out = [1]
    for factor in draw(st.lists(st.integers(2, 5), max_size=3)):
        out.append(out[-1] * factor)
    return tuple(out)


TERMS = st.lists(st.tuples(st.integers(-30, 30), st.integers(1, 6), st.integers(0, 9)), max_size=3)


@given(chains(), TERMS, st.integers(-50, 50))
def test_digits_are_those_of_the_number(system, terms, const):
    """terms: (factor, how many values the name has, which of them it takes)."""
    x = sum((affine(f"x{i}") * f for i, (f, _, _) in enumerate(terms)), affine(const))
    known = {f"x{i}": count for i, (_, count, _) in enumerate(terms)}
    env = {f"x{i}": min(v, count - 1) for i, (_, count, v) in enumerate(terms)}
    values = [evaluate(y, env) for y in digits(x, system, known)]
    assert sum(v * r for v, r in zip(reversed(values), system, strict=True)) == evaluate(x, env)
    assert all(0 <= v < high // low for v, low, high in zip(reversed(values), system, system[1:], strict=False))
    for r in system:
        assert evaluate(quotient(x, r, known), env) == evaluate(x, env) // r


def test_conditions_of_which_one_is_enough_are_parts_that_are_disjoint():
    """{ max(a, b, c) >= 0 } is where one of the three holds."""
    i, n = affine("i"), affine("N")
    tests = (i - 9, n - i - 5, i * -2 + n)
    found = Frame("S", ("N",), ("i",)).where([quasi("max", *tests), i])
    parts = [found.get_basic_set_list().get_at(k) for k in range(found.n_basic_set())]
    assert all(a.to_set().is_disjoint(b.to_set()) for k, a in enumerate(parts) for b in parts[:k])
    either = " or ".join(f"{t} >= 0" for t in tests)
    assert found.is_equal(isl.Set(f"[N] -> {{ S[i] : i >= 0 and ({either}) }}"))
