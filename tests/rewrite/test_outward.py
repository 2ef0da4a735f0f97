"""Products for each of a batch that comes last are computed matrix by matrix, on copies in which it comes first."""

import numpy as np
import pytest

import polyop
from polyop.compiler import compile_op
from polyop.ir.options import Options
from polyop.ir.reference import evaluate
from polyop.ir.target import target
from polyop.known import Known
from polyop.poly.wellformed import check
from polyop.rewrite.copies.outward import LANES, TIMES, TURNED, find_outward, turned_outward
from polyop.rewrite.regimes.regimes import as_it_lies, kinds, regime, regimes_of
from polyop.runtime.arrays import view
from polyop.runtime.bind import bind
from polyop.runtime.layout import contiguous, layout
from tests.rewrite.ops import integers, op

XEON = target("x86:sapphirerapids")


def text(x, y, z, dtype="f32", by="+=", times="*"):
    a, b, c = (", ".join(t) for t in (x, y, z))
    return (f"op f(X: {dtype}[{a.upper()}], Y: {dtype}[{b.upper()}]) -> (Z: {dtype}[{c.upper()}]) "
            f"{{ Z[{c}] {by} X[{a}] {times} Y[{b}] }}")


LYING = [("bmk", "bkn", "mnb"), ("mkb", "bkn", "bmn"), ("bmk", "knb", "mbn"), ("mkb", "knb", "mnb"), ("kmbc", "cbkn", "mnbc"),
         ("bk", "bkn", "nb")]


@pytest.mark.parametrize("lying", LYING, ids=",".join)
@pytest.mark.parametrize("how", [("i32", "+=", "*"), ("i32", "max=", "+")], ids=str)
def test_the_sum_is_that_of_the_text(lying, how):
    o = op(text(*lying, *how))
    made = turned_outward(o)
    check(made)
    for sizes in (dict.fromkeys(o.sizes, 3), {n: 1 + k for k, n in enumerate(o.sizes)}):
        arrays = integers(o, sizes)
        np.testing.assert_array_equal(evaluate(made, sizes, {}, arrays)["Z"], evaluate(o, sizes, {}, arrays)["Z"])


def test_what_ends_in_the_batch_is_copied():
    steps = [str(s).split("  where")[0] for s in turned_outward(op(text("mkb", "bkn", "mnb"))).steps]
    assert steps == ["X_outward[b, m, k] = X[m, k, b]", "Z_outward[b, m, n] += (X_outward[b, m, k] * Y[b, k, n])",
                     "Z[m, n, b] = Z_outward[b, m, n]"]


@pytest.mark.parametrize("other", [
    text("bmk", "bkn", "bmn"),                                                                    # the batch comes first
    text("mkb", "mkb", "mb"),                                                                     # neither rows nor columns
    text("mb", "nb", "mnb"),                                                                      # no sum
    text("bmk", "bkn", "mnb").replace(" }", " where k <= m }"),
    "op f(X: f32[M, K + 1, B], Y: f32[B, K, N]) -> (Z: f32[B, M, N]) { Z[b, m, n] += X[m, k + 1, b] * Y[b, k, n] }",
    "op f(X: f32[W, C], F: f32[R, C]) -> (Y: f32[W - R + 1, C]) { Y[p, c] += X[p + r, c] * F[r, c] }",   # lanes along channels
])
def test_other_sums_stay(other):
    assert turned_outward(op(other)) == op(other) and find_outward(op(other)) == ()


def test_calls_ask_for_it_where_what_is_copied_is_used_often():
    def asked(*lying, **sizes):
        return regime(regimes_of(op(text(*lying))), {"B": 5, "M": 64, "N": 64, "K": 64} | sizes, Options(), XEON).outward
    assert all(asked("bmk", "bkn", "mnb", **{n: v}) for n in "MNK" for v in (1, 64))  # nothing else need be copied
    assert asked("mkb", "bkn", "bmn", N=TIMES, M=1, K=1) and not asked("mkb", "bkn", "bmn", N=TIMES - 1)
    assert asked("mkb", "bnk", "bmn", N=TURNED, M=1, K=1) and not asked("mkb", "bnk", "bmn", N=TURNED - 1)
    assert asked("mkb", "bnk", "bmn", N=TIMES, B=4) and not asked("mkb", "bnk", "bmn", N=TIMES - 1, B=4)
    assert asked("mkb", "bkn", "mnb", N=TURNED, K=TURNED, M=1) and not asked("mkb", "bkn", "mnb", K=TURNED - 1)
    assert asked("mkb", "knb", "mnb", N=LANES, K=LANES, M=LANES) and not asked("mkb", "knb", "mnb", M=LANES - 1)
    assert asked("mkbc", "kncb", "mnbc", N=TURNED, K=TURNED, M=TURNED, C=9)  # of two batches each ends in another one
    assert asked("bk", "bkn", "nb") and asked("bmk", "kb", "mb") and not asked("mkb", "kb", "mb")
    assert not asked("mkb", "bk", "bm")
    assert "comes last" in " ".join(kinds(op(text("mkb", "bkn", "mnb"))))


@pytest.mark.parametrize(("m", "n", "k", "b"), [(1, 1, 1, 2), (17, 16, 7, 3), (6, 65, 33, 16), (7, 3, 130, 17)])
def test_kernels_compute_what_numpy_does(m, n, k, b):
    rng = np.random.default_rng(m)
    sizes = {"m": m, "n": n, "k": k, "b": b}
    x, y = (rng.integers(-3, 4, [sizes[i] for i in part]).astype(np.float32) for part in LYING[3][:2])
    f = polyop.op(text(*LYING[3]), options=Options(outward=True))
    np.testing.assert_array_equal(f(x, y), np.einsum("mkb,knb->mnb", x.astype(np.float64), y))


def test_copies_are_made_for_all_of_the_batch_by_themselves():
    o = op(text("mkb", "bkn", "mnb"))
    made = compile_op(o, contiguous(o), XEON, Options(outward=True, check=False))
    assert made.rung == "tuned" and len(made.chosen) == 3 and "packed" in made.chosen[1]
    assert "lies across its tiles" in " ".join(made.notes) and "around" not in made.trace["schedule"]


def test_sums_of_rows_are_turned_by_themselves():
    o = op(text(*LYING[-1]))
    made = compile_op(o, contiguous(o), XEON, Options(outward=True, check=False, threads=True))
    assert len(made.chosen) == 2 and "lies across its lanes" in " ".join(made.notes)
    f, rng = polyop.op(text(*LYING[-1]), options=Options(outward=True)), np.random.default_rng(0)
    for b, n, k in ((2, 17, 3), (17, 64, 9), (16, 5, 1)):
        x, y = rng.integers(-9, 9, (b, k)).astype(np.float32), rng.integers(-9, 9, (b, k, n)).astype(np.float32)
        np.testing.assert_array_equal(f(x, y), np.einsum("bk,bkn->nb", x.astype(np.float64), y))


def test_a_batch_that_comes_first_in_memory_needs_no_copy():
    o, rng = op(text("bmk", "bkn", "mnb")), np.random.default_rng(0)
    arrays = {"X": rng.random((3, 4, 5)), "Y": rng.random((3, 5, 6))}
    for shape, outward in (((4, 6, 3), True), ((3, 4, 6), False)):
        z = np.zeros(shape).astype(np.float32)
        views = {n: view(a.astype(np.float32), n, None) for n, a in arrays.items()}
        views["Z"] = view(z if outward else z.transpose(1, 2, 0), "Z", None)
        assert as_it_lies(regimes_of(o), layout(o, views), Options(outward=True)).outward is outward


def test_a_result_alone_is_copied_only_where_operands_lie_along_the_sum():
    o = op(text("bk", "bkn", "nb"))
    x, y, z = (np.zeros(s, np.float32) for s in ((3, 5), (3, 5, 6), (6, 3)))
    apart = np.zeros((3, 5, 12), np.float32)[:, :, ::2]  # each use would look for every lane: a copy is worth as much
    for operand, outward in ((y, True), (apart, True), (np.zeros((3, 6, 5), np.float32).transpose(0, 2, 1), False)):
        views = {n: view(a, n, None) for n, a in (("X", x), ("Y", operand), ("Z", z))}
        assert as_it_lies(regimes_of(o), layout(o, views), Options(outward=True)).outward is outward


@pytest.mark.parametrize("declared", [("bmk", "kbn"), ("mkb", "bkn")])
@pytest.mark.parametrize(("x", "y", "outward"), [
    ("bkm", "kbn", True), ("bmk", "nbk", True), ("kbm", "bnk", True), ("bmk", "nkb", True), ("kmb", "kbn", True),
    ("kmb", "nkb", False)])
def test_a_result_that_ends_in_the_batch_is_turned_however_a_caller_turned_operands(declared, x, y, outward):
    o, sizes, rng = op(text(*declared, "mnb")), {"m": 33, "k": 35, "b": 6, "n": LANES - 1}, np.random.default_rng(0)
    arrays = [rng.integers(-3, 4, [sizes[i] for i in lying]).astype(np.float32).transpose([lying.index(i) for i in said])
              for lying, said in zip((x, y), declared, strict=True)]
    known, seen = Known(o).as_it_lies(bind(o, dict(zip("XY", arrays, strict=True))))
    found = regimes_of(known.op)
    asked = regime(found, {n.upper(): v for n, v in sizes.items()}, Options(), XEON)
    assert as_it_lies(found, layout(known.op, seen.views), asked).outward is outward
    want = np.einsum(f"{declared[0]},{declared[1]}->mnb", *(a.astype(np.float64) for a in arrays))
    np.testing.assert_array_equal(polyop.op(text(*declared, "mnb"))(*arrays), want)


def test_a_temporary_that_ends_in_the_batch_lies_as_the_text_has_it():
    f = polyop.op("""op f(X: f32[M, K, B], Y: f32[B, K, N]) -> (Z: f32[M, N, B]) {
    T[m, n, b] += X[m, k, b] * Y[b, k, n]
    Z[m, n, b]  = T[m, N - 1 - n, b] - T[m, n, b]
}""")
    rng = np.random.default_rng(0)
    for m, n, k, b in ((1, 2, 1, 3), (17, 16, 7, 3), (20, 33, 24, 17)):
        x, y = rng.integers(-3, 4, (m, k, b)).astype(np.float32), rng.integers(-3, 4, (b, k, n)).astype(np.float32)
        t = np.einsum("mkb,bkn->mnb", x.astype(np.float64), y)
        for given in (x, np.ascontiguousarray(x.T).T):
            np.testing.assert_array_equal(f(given, y), t[:, ::-1] - t)
