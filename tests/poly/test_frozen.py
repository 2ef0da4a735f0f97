"""The proof that calls may leave out what the first one has made of frozen inputs, and nests that it must not accept."""

from dataclasses import replace

import numpy as np
import pytest

import polyop
from polyop.codegen.cpu.frozen import once
from polyop.ir.dtypes import F32
from polyop.ir.expr import Affine, Scalar, affine, evaluate, loads, map_loads
from polyop.ir.interpret import empty, interpret
from polyop.ir.loops import IS_FIRST, Barrier, For, If, Kind, Space, Store, rebuild, walk
from polyop.ir.options import Options
from polyop.ir.reference import evaluate as reference
from polyop.poly.verify.frozen import lasts
from polyop.rewrite.ones import fix_sizes
from polyop.rewrite.windows.filtered import filtered
from polyop.rewrite.windows.winograd import Way

from .middles import op_of

TEXT = "op matmul(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[k, n] }"


@pytest.fixture(scope="module")
def nests():
    """(what all calls do, what is emitted) of a product whose right operand is frozen."""
    from polyop.compiler import compile_op
    from polyop.runtime import cpu
    from polyop.runtime.layout import contiguous

    operator = polyop.op(TEXT)
    op = operator._op(operator.choice())
    after = compile_op(op, contiguous(op, ()), cpu.resolve("x86:x86-64-v3"), Options(frozen=("B",))).final
    first, = (n for n in after.body if isinstance(n, If) and n.tests == (affine(IS_FIRST) - 1,))
    body = tuple(x for n in after.body for x in (n.then if n is first else (n,)))
    buffers = tuple(replace(b, lasting=False) for b in after.buffers)
    return replace(after, sizes=after.sizes[:-1], body=body, buffers=buffers), after


def within(nest, f):
    """`nest` with `f` of each node in the first call's part."""
    def deep(n):
        return f(rebuild(n, lambda inner: tuple(map(deep, inner))))
    return replace(nest, body=tuple(
        replace(n, then=tuple(map(deep, n.then))) if isinstance(n, If) and n.tests == (affine(IS_FIRST) - 1,) else n
        for n in nest.body))


def beside(before, after):
    """What all calls would do, if it were what `after` does."""
    body = tuple(x for n in after.body for x in (n.then if isinstance(n, If) and n.tests == (affine(IS_FIRST) - 1,) else (n,)))
    return replace(before, body=body)


def of_store(f):
    return lambda n: f(n) if isinstance(n, Store) else n


def test_a_copy_of_all_of_a_frozen_operand_lasts(nests):
    before, after = nests
    assert once(before, ("B",)) == after
    assert lasts(before, after, ("B",)).holds
    assert once(before, ()) is before and once(before, ("A",)) is before
    kept, = (b for b in after.buffers if b.lasting)
    assert kept.space == Space.WORK and not kept.private


@pytest.mark.parametrize("change, says", [
    (of_store(lambda n: replace(n, expr=map_loads(n.expr, lambda x: replace(x, source="A")))), "what is not frozen"),
    (of_store(lambda n: replace(n, target=replace(n.target, source="C"))), "what is not frozen"),
    (of_store(lambda n: replace(n, expr=Scalar("scale", F32))), "depends on data"),
    (of_store(lambda n: replace(n, expr=map_loads(n.expr, lambda x: replace(x, index=(x, *x.index[1:]))))), "depends on data"),
    (of_store(lambda n: replace(n, target=replace(n.target, index=(affine("M"), *n.target.index[1:])))), "other sizes"),
    (lambda n: replace(n, upper=affine("M")) if isinstance(n, For) and n.kind == Kind.SERIAL else n, "M decides"),
    (lambda n: If((affine("M") - 3,), (n,)) if isinstance(n, Store) else n, "M decides"),
    (lambda n: replace(n, body=(*n.body, Barrier("none"))) if isinstance(n, For) and n.kind == Kind.SERIAL else n, "Barrier"),
])
def test_what_depends_on_more_than_frozen_inputs_is_refused(nests, change, says):
    before, after = nests
    changed = within(after, change)
    assert changed != after
    proof = lasts(beside(before, changed), changed, ("B",))
    assert not proof.holds and says in proof.witness


def test_memory_that_others_write_is_refused(nests):
    before, after = nests
    kept, = (b.name for b in after.buffers if b.lasting)
    store = next(n for n in walk(after.body) if isinstance(n, Store) and n.target.source == kept)
    changed = replace(after, body=(*after.body, replace(store, target=replace(store.target, index=(Affine(),) * 3))))
    proof = lasts(beside(before, changed), changed, ("B",))
    assert not proof.holds and "is written in all calls" in proof.witness


@pytest.mark.parametrize("change, says", [
    (lambda b: replace(b, private=True), "other memory in each call"),
    (lambda b: replace(b, dims=((affine("M"), 1), *b.dims[1:])), "other memory in each call"),
])
def test_memory_that_is_not_the_same_in_all_calls_is_refused(nests, change, says):
    before, after = nests
    changed = replace(after, buffers=tuple(change(b) if b.lasting else b for b in after.buffers))
    same = replace(before, buffers=tuple(replace(b, lasting=False) for b in changed.buffers))
    proof = lasts(same, changed, ("B",))
    assert not proof.holds and says in proof.witness


def test_memory_that_is_read_between_two_first_parts_is_refused(nests):
    before, after = nests
    first, rest = after.body[0], after.body[1:]
    changed = replace(after, body=(first, *rest, first))
    proof = lasts(beside(before, changed), changed, ("B",))
    assert not proof.holds and "is read before the first call writes it again" in proof.witness
    plain = beside(before, changed)
    assert once(plain, ("B",)) is plain


def test_a_register_that_only_the_first_call_fills_is_refused(nests):
    before, after = nests
    first, acc = after.body[0], next(b.name for b in after.buffers if b.space == Space.REG)
    store = next(n for n in walk(first.then) if isinstance(n, Store))
    filled = replace(store, target=replace(store.target, source=acc, index=(Affine(), Affine())),
                     expr=replace(store.expr, index=(Affine(),) * len(store.expr.index)))
    kept = next(n for n in walk(after.body[1:]) if isinstance(n, Store) and n.target.source == "C")
    changed = replace(after, body=(replace(first, then=(*first.then, filled)), kept))
    proof = lasts(beside(before, changed), changed, ("B",))
    assert not proof.holds and "does not last" in proof.witness


@pytest.fixture(scope="module")
def passing():
    """The same of weights that are turned and added up before they are packed: (all calls, emitted)."""
    from polyop.compiler import compile_op
    from polyop.runtime import cpu
    from polyop.runtime.layout import contiguous

    op = op_of("""op f(X: f32[N, C, L], F: f32[K, C, R]) -> (O: f32[N, K, L]) {
        O[n, k, p] += (X[n, c, p + r - 1] else 0) * F[k, c, r] }""")
    op = filtered(fix_sizes(op, {"R": 3}), (Way(0, (2,), 4, (False,)),))
    after = compile_op(op, contiguous(op, ()), cpu.resolve("x86:x86-64-v3"), Options(frozen=("F",))).final
    first, = (n for n in after.body if isinstance(n, If) and n.tests == (affine(IS_FIRST) - 1,))
    body = tuple(x for n in after.body for x in (n.then if n is first else (n,)))
    buffers = tuple(replace(b, lasting=False) for b in after.buffers)
    return replace(after, sizes=after.sizes[:-1], body=body, buffers=buffers), after


def first_and_rest(after):
    """What stores in the first call's part write, and reads in the others."""
    first, = (n for n in after.body if isinstance(n, If) and n.tests == (affine(IS_FIRST) - 1,))
    rest = [n for n in after.body if n is not first]
    return ({n.target.source for n in walk(first.then) if isinstance(n, Store)},
            {x.source for n in walk(rest) if isinstance(n, Store) for x in loads(n.expr)})


def test_only_what_later_calls_read_lasts(passing):
    before, after = passing
    assert lasts(before, after, ("F",)).holds
    made, read = first_and_rest(after)
    lasting = {b.name for b in after.buffers if b.lasting}
    assert lasting == made & read and made - lasting
    assert any(b.private for b in after.buffers if b.name in made - lasting)  # rows that each thread turns for itself
    assert any(b.space == Space.WORK and not b.private for b in after.buffers if b.name in made - lasting)


@pytest.mark.parametrize("private", [False, True])
def test_what_passes_in_the_first_call_is_not_read_later(passing, private):
    before, after = passing
    made, read = first_and_rest(after)
    passed = next(b.name for b in after.buffers if b.name in made - read and b.space == Space.WORK and b.private == private)
    lasting, = (b.name for b in after.buffers if b.lasting)

    def elsewhere(nest):
        def of(n):
            inner = rebuild(n, lambda body: tuple(map(of, body)))
            return replace(inner, expr=map_loads(inner.expr, lambda x: replace(x, source=passed) if x.source == lasting else x)) \
                if isinstance(n, Store) else inner
        return replace(nest, body=tuple(of(n) if not isinstance(n, If) or n.tests != (affine(IS_FIRST) - 1,) else n
                                        for n in nest.body))
    changed = elsewhere(after)
    assert passed in first_and_rest(changed)[1]
    proof = lasts(beside(before, changed), changed, ("F",))
    assert not proof.holds and f"{passed} is read in all calls, and does not last" in proof.witness
    made_again = once(beside(before, changed), ("F",))
    assert not private or passed not in {b.name for b in made_again.buffers if b.lasting}
    if made_again.sizes != before.sizes:  # what is still made once is proved
        assert lasts(beside(before, changed), made_again, ("F",)).holds


@pytest.mark.parametrize("extents, known", [
    ("K, 2*K + N", "K N"), ("K + N, N", "K N"), ("K + N", ""), ("K/2", ""), ("K/2, K", "K"), ("max(K, N), N", "N"),
    ("7", ""), ("3*K", "K"),
])
def test_sizes_follow_from_extents_that_leave_them_no_choice(extents, known):
    from polyop.ir.affine import quasi, settled_by
    from polyop.poly.verify.frozen import _determined

    k, n = affine("K"), affine("N")
    terms = {"K": k, "N": n, "2*K + N": k * 2 + n, "K + N": k + n, "K/2": quasi("div", k, affine(2)),
             "max(K, N)": quasi("max", k, n), "7": affine(7), "3*K": k * 3}
    given = [terms[e] for e in (extents.split(", ") if "max" not in extents else ["max(K, N)", "N"])]
    assert settled_by(given) == _determined(given) == frozenset(known.split())


def test_what_is_left_out_of_all_calls_is_refused(nests):
    before, after = nests
    proof = lasts(before, replace(after, body=after.body[1:]), ("B",))
    assert not proof.holds and "other loops" in proof.witness
    assert not lasts(before, replace(after, sizes=before.sizes), ("B",)).holds
    assert not lasts(before, after, ("A",)).holds


def test_a_copy_of_blocks_is_made_in_all_calls():
    """It depends on the loops around it; only what stands before all loops is left out."""
    made = polyop.op(TEXT)
    plain = made.compile(target="x86:x86-64-v3")
    assert not any(b.lasting for b in plain.binary.signature.work)
    one = made.compile(target="x86:x86-64-v3", options=Options(frozen=("B",)))
    assert [b.lasting for b in one.binary.signature.work].count(True) == 1
    assert IS_FIRST in one.binary.signature.sizes and IS_FIRST not in plain.binary.signature.sizes


CALLS = {
    "nn": (TEXT, {"M": 5, "K": 9, "N": 27}),
    "nt": (TEXT.replace("B: f32[K, N]", "B: f32[N, K]").replace("B[k, n]", "B[n, k]"), {"M": 6, "K": 10, "N": 50}),
    "bf16": ("op f(A: bf16[M, K], B: bf16[K, N]) -> (C: f32[M, N]) { C[m, n] += f32(A[m, k]) * f32(B[k, n]) }",
             {"M": 5, "K": 9, "N": 33}),
    "bytes": ("op f(A: u8[M, K], B: i8[K, N]) -> (C: i32[M, N]) { C[m, n] += i32(A[m, k]) * i32(B[k, n]) }",
              {"M": 5, "K": 9, "N": 33}),
    "window": ("op f(A: f32[L, K], B: f32[R, K, N]) -> (C: f32[L - R + 1, N]) { C[p, n] += A[p + r, k] * B[r, k, n] }",
               {"L": 9, "R": 3, "K": 5, "N": 26}),
}


@pytest.mark.parametrize("target", ["x86-64-v2", "x86-64-v3", "x86-64-v4", "sapphirerapids"])
@pytest.mark.parametrize("text, sizes", CALLS.values(), ids=CALLS)
def test_later_calls_need_nothing_of_a_frozen_input(text, sizes, target):
    from polyop.compiler import compile_op
    from polyop.runtime import cpu
    from polyop.runtime.layout import contiguous

    operator = polyop.op(text)
    op = operator._op(operator.choice())
    made = compile_op(op, contiguous(op, ()), cpu.resolve(f"x86:{target}"), Options(frozen=("B",)))
    assert made.rung == "tuned" and made.final is not None
    nest, rng = made.final, np.random.default_rng(0)
    given = {t.name: rng.integers(0, 5, [evaluate(e, sizes) for e in t.shape]).astype(t.dtype.numpy) for t in op.inputs}
    lasting = {b.name: empty(b, sizes) for b in nest.buffers if b.lasting}
    want = reference(op, sizes, {}, given)["C"]
    assert lasting
    for first in (1, 0, 0):
        c = np.zeros(want.shape, want.dtype)
        interpret(nest, {**sizes, IS_FIRST: first}, {}, {**given, **lasting, "C": c})
        assert (c == want).all()
        given["B"] = np.full_like(given["B"], 99)
