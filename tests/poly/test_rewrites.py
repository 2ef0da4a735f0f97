"""Rewrites of a proved nest are followed, whatever they are; what does anything else is refused, with a case that shows it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyop import standard
from polyop.codegen.cpu.carry import carry
from polyop.codegen.cpu.lower import kept, rewrites, rewritten
from polyop.codegen.cpu.stream import stream_outputs
from polyop.dsl.check import instantiate
from polyop.dsl.interface import interface
from polyop.dsl.parse import parse
from polyop.ir.errors import InternalError
from polyop.ir.expr import Apply, Expr, Load, Test, affine, quasi
from polyop.ir.expr import rebuild as rebuild_expr
from polyop.ir.loops import LOCKSTEP, For, If, Kind, LoopNest, Node, Prefetch, Store, rebuild, structure, walk
from polyop.ir.module import Proof
from polyop.ir.options import Options
from polyop.ir.span import Source
from polyop.ir.target import target
from polyop.poly.middle import lower, scop_of
from polyop.poly.scop import extract
from polyop.poly.verify import first_failure, prove, verdict
from polyop.poly.verify import rewrites as rules
from polyop.poly.verify.rewrites import follows
from polyop.rewrite.windows.pieces import cut_into_pieces
from polyop.runtime.layout import contiguous
from polyop.trial import trial

from .mutants import mutant
from .orders import orders
from .test_soundness import CASES, results, some_sizes
from .texts import nest, operator

SCAN = operator("Y[i] = guard(Y[i - 1], i - 1 >= 0) + X[i]", inputs="X[N]", outputs="Y[N]", ranges="i:N")
COLUMNS = operator("Y[i, j] = guard(Y[i - 1, j], i - 1 >= 0) + X[i, j]", inputs="X[N, M]", outputs="Y[N, M]", ranges="i:N j:M")
CLAMP = operator("Y[i] = X[min(max(i - 2, 0), N - 1)] + 1.0", inputs="X[N]", outputs="Y[N + 4]", ranges="i:N+4", where="N >= 1")
TIED = operator("Y[i] += X[i, j] | | j <= i", inputs="X[N, N]", outputs="Y[N]", ranges="i:N j:N")
MORE = {
    "tied": (TIED, nest(TIED, """
        for i_r in 0, N, 2: parallel
            for i_v in 0, min(2, N - i_r): lanes 2
                Y_init(i_r + i_v): Y[i_r + i_v] = 0.0
                for j in 0, N:
                    if j <= i_r + i_v:
                        S0(i_r + i_v, j): Y[i_r + i_v] += X[i_r + i_v, j]""")),
    "scan": (SCAN, nest(SCAN, """
        for i in 0, N:
            S0(i): Y[i] = guard(Y[i - 1], i - 1 >= 0) + X[i]""")),
    "columns": (COLUMNS, nest(COLUMNS, """
        for j_t in 0, M, 2: parallel
            for j_v in 0, min(2, M - j_t): lanes 2
                for i in 0, N:
                    S0(i, j_t + j_v): Y[i, j_t + j_v] = guard(Y[i - 1, j_t + j_v], i - 1 >= 0) + X[i, j_t + j_v]""")),
    "clamp": (CLAMP, nest(CLAMP, """
        for i_t in 0, N + 4, 4: parallel
            for i_v in 0, min(4, N + 4 - i_t): lanes 4
                S0(i_t + i_v): Y[i_t + i_v] = X[min(max(i_t + i_v - 2, 0), N - 1)] + 1.0""")),
}

def with_units(given: LoopNest) -> LoopNest:
    """`given`, for tensors whose last dimension has stride 1."""
    return replace(given, buffers=tuple(replace(b, unit=len(b.dims) - 1) for b in given.buffers))


ALL = CASES | {name: (op, with_units(given)) for name, (op, given) in MORE.items()}
WIDTH = 1  # of a vector, for tiles of two lanes


@cache
def pair(name: str) -> tuple[LoopNest, LoopNest]:
    before = carry(stream_outputs(ALL[name][1]), WIDTH)
    return before, rewrites(before, WIDTH)


def followed(name: str, after: LoopNest) -> Proof:
    return follows(pair(name)[0], after, extract(ALL[name][0]).context)


@pytest.mark.parametrize("name", ALL)
def test_what_is_proved_is_proved_with_carried_values_too_and_the_rewrites_follow_it(name):
    op, _ = ALL[name]
    before, after = pair(name)
    failed = first_failure(prove(extract(op), before))
    assert failed is None, failed
    proof = followed(name, after)
    assert proof.holds, proof


@pytest.mark.parametrize("name", ["silu_mul", "softmax", "matmul", "trmm", "conv2d_nhwc", "attention_causal", "gru", "cumsum",
                                  "jacobi2d", "pad2d_reflect", "max_pool2d", "rotary", "fdtd2d", "argmax_rows"])
@pytest.mark.parametrize("arch", ["x86-64-v4", "x86-64-v3"])
def test_what_is_emitted_for_the_library_follows_what_is_proved(name, arch):
    text = standard.program(standard.index()[name])

    def make(dtypes, consts, rank):
        return instantiate(text, name, dtypes=dtypes, consts=consts, rank=rank, library=standard.LIBRARY)

    op, on = trial(interface(text, name), make, {}, None, 0, 8).op, target(f"x86:{arch}")
    for regime in ("positive", "any"):
        made = lower(scop_of(cut_into_pieces(op)), contiguous(op), on, Options(regime=regime), "tuned")
        before = kept(made.nest, on)
        proof = follows(before, rewritten(before, on), made.scop.context.intersect(made.context))
        assert proof.holds, proof


FOUND = "(X[j, i] == t[i] or (isnan(X[j, i]) and isnan(t[i])))"
CHOSEN = {
    "a truth read before the start": "op f(X: bool[M]) -> (Y: f32[M]) { Y[i] = (Y[i-1] else 1) + ((X[i-1] else true) ? 1 : 0) }",
    "a choice of choices": f"""op f(X: f32[N, M]) -> (Y: i64[M]) {{
        t[i] max= X[j, i]
        Y[i] += j >= 1 ? ({FOUND} ? 1 : 0) : (X[j, i] > 0 ? 2 : 3)  where j in 0:N }}""",
    "a choice inside a negation": f"""op f(X: f32[N, M]) -> (Y: i64[M]) {{
        t[i] max= X[j, i]
        Y[i] += not (j >= 3 and j + 2 < N ? false : {FOUND}) ? 1 : 0  where j in 0:N }}""",
    "places in rows of which the rest alone is chosen": "op f(X: f32[N, 20]) -> (Y: i64[N]) { Y[n] argmax= X[n, c] }",
    "the place of the largest, which is a number but for the last":
        "op f(X: f32[N, M], K: int) -> (Y: i64[K]) { Y[i] argmax= (j + 1 < M ? 0.0 : (X[i + j, j] else 0))  where j in 0:M }",
}


@pytest.mark.parametrize("name", CHOSEN)
@pytest.mark.parametrize("arch", ["x86-64-v4", "x86-64-v3"])
def test_choices_inside_of_conditions_are_followed(name, arch):
    op, on = instantiate(parse(Source("t.pop", CHOSEN[name])), "f"), target(f"x86:{arch}")
    made = lower(extract(op), contiguous(op), on, Options(), "tuned")
    before = kept(made.nest, on)
    proof = follows(before, rewritten(before, on), made.scop.context.intersect(made.context))
    assert proof.holds, proof


COPY = operator("Y[i] = X[i]", inputs="X[N]", outputs="Y[N]", ranges="i:N")
TILED = nest(COPY, """
    for i_t in 0, N, 4: parallel
        for i_v in 0, min(4, N - i_t): lanes 4
            S0(i_t + i_v): Y[i_t + i_v] = X[i_t + i_v]""")
PEELED = """
    for i_t in 0, N - 3, 4: parallel
        for i_v in 0, 4: lanes 4
            S0(i_t + i_v): Y[i_t + i_v] = X[i_t + i_v]
    for i_t in {start}, N, 4:
        for i_v in 0, N - i_t: lanes {room}
            S0(i_t + i_v): Y[i_t + i_v] = X[{place}]"""


def peeled(start="N // 4 * 4", room="4", place="i_t + i_v") -> LoopNest:
    return nest(COPY, PEELED.format(start=start, room=room, place=place))


def of_copy(after: LoopNest, before: LoopNest = TILED) -> Proof:
    return follows(before, after, extract(COPY).context)


def test_full_tiles_and_what_is_left_over_are_the_loop():
    assert of_copy(peeled()).holds
    assert of_copy(peeled(start="max(0, N // 4 * 4)")).holds


@pytest.mark.parametrize("after, says", [
    (peeled(start="(N + 4) // 4 * 4"), "N = 1, i_t = 0, i_v = 0: loop i_t does not run"),
    (peeled(start="max(0, (N - 1) // 4 * 4)"),
     "N = 4, i_t = 0: loop i_t from max(0, 4*floor((N + 3)/4) - 4) to N runs after later iterations, or again"),
    (peeled(start="N // 4 * 4 - 4"), "N = 0, i_t = -4: loop i_t from 4*floor((N)/4) - 4 to N runs, and should not"),
    (peeled(start="N // 2 * 2"), "N = 3: loop i_t starts at 2*floor((N)/2), which is no step of the loop from 0 by 4"),
    (peeled(room="2"), "N = 3, i_t = 0: loop i_v runs to N - i_t, and has room for 2 copies"),
    (peeled(room="8"), "N = 1, i_t = 0: loop i_v has room for 8 copies, expected 4"),
    (peeled(place="i_t"), "N = 2, i_t = 0, i_v = 1: `X[i_t]` where `X[i_t + i_v]` is expected"),
    (nest(COPY, "for i in 0, N:\n    S0(i): Y[i] = X[i]"), "N = 1, i_t = 0, i_v = 0: loop i runs, expected loop i_t"),
    (replace(TILED, body=()), "N = 1, i_t = 0, i_v = 0: nothing runs, expected loop i_t"),
    (replace(TILED, body=TILED.body * 2), "N = 1, i_t = 0, i_v = 0: loop i_t runs, expected nothing"),
    (replace(TILED, sizes=("M",)), "the sizes are M, expected N"),
])
def test_the_smallest_case_shows_what_differs(after, says):
    proof = of_copy(after)
    assert not proof.holds and proof.witness == says


def test_the_rest_of_a_loop_may_stand_under_a_test_if_every_branch_has_it():
    full, rest = peeled().body
    two = affine("N") - 2
    assert of_copy(replace(TILED, body=(full, If((two,), (rest,), (rest,))))).holds
    assert of_copy(replace(TILED, body=(full, If((two,), (rest,), (If((two,), (), (rest,)),))))).holds
    proof = of_copy(replace(TILED, body=(full, If((two,), (rest,), ()))))
    assert not proof.holds and proof.witness == "N = 1, i_t = 0, i_v = 0: loop i_t does not run"
    proof = of_copy(replace(TILED, body=(full, If((two,), (rest,), (rest, rest)))))
    assert not proof.holds and proof.witness == "N = 1, i_t = 0, i_v = 0: loop i_t runs, expected nothing"


BELOW = """
    for i in 0, N:
        Y_init(i): Y[i] = 0.0
        for j in 0, {upper}:
            if j <= {last}:
                S0(i, j): Y[i] += X[i, j]"""


def below(upper: str, last: str = "i") -> LoopNest:
    return nest(TIED, BELOW.format(upper=upper, last=last))


def test_bounds_that_a_test_implies_may_go_and_no_others():
    context = extract(TIED).context
    for before in ("min(N, i + 1)", "min(N, i + 3)"):
        assert follows(below(before), below("N"), context).holds
    assert follows(below("min(N, i + 1, 2*i + 5)"), below("min(N, 2*i + 5)"), context).holds
    found = follows(below("min(N, i + 1)", "i + 1"), below("N", "i + 1"), context)
    assert not found.holds and found.witness == "N = 2, i = 0, j = 1: loop j from 0 to N runs, and should not"
    assert not follows(below("N"), below("min(N, i)"), context).holds


def test_a_parallel_loop_may_become_a_serial_one_and_not_the_other_way_round():
    serial = replace(TILED, body=(replace(TILED.body[0], kind=Kind.SERIAL),))
    assert of_copy(serial).holds
    assert "loop i_t is parallel, expected serial" in of_copy(TILED, serial).witness


def test_hints_are_no_stores():
    def hinted(body: tuple[Node, ...]) -> tuple[Node, ...]:
        return tuple(y for x in body for y in ((Prefetch(x.target), replace(x, stream=True)) if isinstance(x, Store)
                                               else (rebuild(x, hinted),)))

    after = replace(TILED, body=hinted(TILED.body))
    assert structure(after.body) == "i_t:parallel(i_v:lanes(prefetch S0))" and of_copy(after).holds


def test_a_name_that_nothing_binds_is_refused_wherever_it_stands():
    loop = TILED.body[0]
    assert isinstance(loop, For)
    for node in (If((affine("x"),), (loop,), (loop,)), replace(loop, upper=affine("x")), replace(loop, upper=affine("i_t") + 1)):
        proof = of_copy(replace(TILED, body=(node,)))
        assert not proof.holds and "no loop around it and no size" in proof.witness


def test_what_takes_too_long_to_follow_is_not_proved(monkeypatch):
    after = pair("clamp")[1]
    monkeypatch.setattr(verdict, "OPERATIONS", 50)
    assert followed("clamp", after).witness == verdict.UNDECIDED
    monkeypatch.undo()
    monkeypatch.setattr(rules, "STEPS", 0)
    assert followed("clamp", after).witness == verdict.UNDECIDED


@pytest.mark.parametrize("name, most", [("matmul", 10_000), ("softmax", 6_000), ("clamp", 6_000)])
def test_following_is_cheap(name, most, monkeypatch):
    """Counted in operations of isl, of which one claim may take millions."""
    monkeypatch.setattr(verdict, "OPERATIONS", most)
    assert followed(name, pair(name)[1]).holds


# --- damage --------------------------------------------------------------------------------------------------------------


def damaged(given: LoopNest, random: Random) -> LoopNest:
    """`given` with one change of the kind that a wrong rewrite would make; it may happen to mean the same."""
    if random.randrange(3) == 0:
        return mutant(given, random)
    places = [x for x in walk(given.body) if not isinstance(x, Prefetch)]
    chosen = places[random.randrange(len(places))]

    def go(body: tuple[Node, ...]) -> tuple[Node, ...]:
        out: list[Node] = []
        for at, x in enumerate(body):
            if x is not chosen:
                out.append(rebuild(x, go))
            elif isinstance(x, If):
                out += random.choice(wrong_tests(x, random))
            elif isinstance(x, Store):
                out.append(replace(x, expr=wrong_choice(x.expr, random)))
            elif isinstance(x, For):
                swapped = (*body[at + 1 : at + 2], x)
                cut = random.choice((*wrong_loops(x, random), swapped))
                return (*out, *cut, *body[at + (2 if cut is swapped else 1):])
        return tuple(out)

    return replace(given, body=go(given.body))


def wrong_tests(x: If, random: Random) -> list[tuple[Node, ...]]:
    other = tuple(t + random.choice((-2, -1, 1, 2)) for t in x.tests)
    return [(replace(x, then=x.other, other=x.then),), (replace(x, tests=other),), (replace(x, other=()),), x.then, x.other,
            (replace(x, tests=tuple(t * -1 for t in x.tests)),)]


def wrong_choice(e: Expr, random: Random) -> Expr:
    """`e` with other conditions, or other values where they hold."""
    match rebuild_expr(e, lambda x: wrong_choice(x, random)):
        case Apply(fn="select", args=(c, a, b)) as x if random.randrange(2):
            return replace(x, args=(c, b, a))
        case Test(tests=tests) if random.randrange(2):
            return Test(tuple(t + random.choice((-1, 0, 1)) for t in tests))
        case Load(guard=guard) as x if guard and random.randrange(2):
            return replace(x, guard=random.choice((guard[1:], tuple(t + random.choice((-1, 1)) for t in guard))))
        case x:
            return x


def wrong_loops(x: For, random: Random) -> list[tuple[Node, ...]]:
    by = random.choice((-1, 1)) * random.choice((1, x.step))
    out: list[tuple[Node, ...]] = [(replace(x, upper=x.upper + by),), ()]
    if x.kind in LOCKSTEP:
        assert x.extent
        out += [(replace(x, extent=max(1, x.extent - 1)),), (replace(x, upper=affine(x.extent)),),
                (replace(x, upper=affine(1), extent=1),)]
    else:
        out += [(replace(x, lower=x.lower + by),), (replace(x, upper=x.lower + x.step),)]
    return out


def with_room(given: LoopNest) -> LoopNest:
    """`given` as a target runs it: no lock-step loop has more copies than its extent."""
    def go(body: tuple[Node, ...]) -> tuple[Node, ...]:
        new = tuple(rebuild(x, go) for x in body)
        return tuple(replace(x, upper=quasi("min", x.upper, affine(x.extent))) if isinstance(x, For) and x.extent else x
                     for x in new)

    return replace(given, body=go(given.body))


@cache
def right(name: str) -> list[tuple[dict[str, int], list[np.ndarray]]]:
    op, given = ALL[name]
    return [(sizes, results(op, given, sizes)) for sizes in some_sizes(op)]


def changes(name: str, after: LoopNest) -> str:
    """How `after` computes anything else, in some order that its loops allow; empty if it does not."""
    for variant in (with_room(after), *orders(after)):
        for sizes, wanted in right(name):
            try:
                found = results(ALL[name][0], variant, sizes)
            except InternalError as error:
                return str(error)
            if not all(np.allclose(a, b, rtol=1e-5, equal_nan=True) for a, b in zip(found, wanted, strict=True)):
                return f"other results at {sizes}"
    return ""


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1 << 30))
def test_damage_that_changes_results_is_refused(name, seed):
    after = damaged(pair(name)[1], Random(seed))
    proof = followed(name, after)
    if proof.holds:
        assert not changes(name, after), f"{changes(name, after)}\n{pair(name)[0]}\n{after}"
    else:
        assert proof.witness
