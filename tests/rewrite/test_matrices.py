"""Contractions of many short indices are products of matrices, on copies in which rows, columns and depth are one index each."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import polyop
from polyop.ir.options import Options
from polyop.ir.reference import evaluate
from polyop.poly.wellformed import check
from polyop.rewrite.copies.matrices import columns, find_matrices, in_matrices, numbers
from polyop.rewrite.flatten import flatten
from polyop.rewrite.ones import fix_sizes
from polyop.rewrite.regimes.regimes import kinds
from tests.rewrite.ops import integers, op

MIXED = ("akmbl", "blnak", "nbma"), {"a": 3, "b": 5, "k": 4, "l": 5, "m": 20, "n": 12}


def text(x, y, z, dtype="f32", by="+=", times="*"):
    a, b, c = (", ".join(t) for t in (x, y, z))
    return (f"op f(X: {dtype}[{a.upper()}], Y: {dtype}[{b.upper()}]) -> (Z: {dtype}[{c.upper()}]) "
            f"{{ Z[{c}] {by} X[{a}] {times} Y[{b}] }}")


def asked(x, y, z, whole=(), **sizes):
    """Which operand has the columns in such a call, or None."""
    found = find_matrices(op(text(x, y, z)))
    return columns(found[0], {n.upper(): v for n, v in sizes.items()}, whole) if found else None


def matrices(o, sizes, whole=()):
    return in_matrices(flatten(fix_sizes(o, {n: v for n, v in sizes.items() if v > 1}), ()), whole)


def steps(x, y, z, whole=(), **sizes):
    made = matrices(op(text(x, y, z)), {n.upper(): v for n, v in sizes.items()}, whole).op
    check(made)
    return [str(s).split("  where")[0] for s in made.steps]


def test_short_indices_are_one_in_copies():
    lying, sizes = MIXED
    assert steps(*lying, **sizes) == [
        "X_matrices[b, a, m, 5*k + l] = X[a, k, m, b, l]", "Y_matrices[b, a, 5*k + l, n] = Y[b, l, n, a, k]",
        "Z_matrices[b, a, m_2, n_2] += (X_matrices[b, a, m_2, k_2] * Y_matrices[b, a, k_2, n_2])",
        "Z[n, b, m, a] = Z_matrices[b, a, m, n]"]


def test_what_lies_so_is_not_copied():
    made = steps("bmk", "bkn", "bnm", b=4, m=40, n=3, k=9)
    assert made == ["Z[b, n, m] += (X[b, m, k] * Y[b, k, n])"]


def test_what_is_added_up_is_one_as_the_larger_operand_has_it_which_is_only_seen_so():
    assert steps("lmk", "nkl", "mn", "XYZ", l=2, m=8, k=110, n=139) == [
        "X_matrices[m, 2*k + l] = X[l, m, k]", "Z[m_2, n_2] += (X_matrices[m_2, k_2] * Y[n_2, k_2])"]
    assert steps("bkl", "bnlk", "bn", "Y", l=7, b=4, k=8, n=44) == [
        "X_matrices[b, k + 8*l] = X[b, k, l]", "Z[b, n_2] += (X_matrices[b, k_2] * Y[b, n_2, k_2])"]
    assert steps("mokl", "nlk", "nmo", "XZ", l=7, m=4, o=20, k=8, n=3) == [  # the larger one has the columns
        "Y_matrices[n, 7*k + l] = Y[n, l, k]", "Z[m_2, n_2] += (X[n_2, k_2] * Y_matrices[m_2, k_2])"]
    sizes = {"l": 2, "m": 8, "k": 110, "n": 139}
    assert asked("lmk", "nkl", "mn", "X", **sizes) is None                      # the larger one would be copied
    assert asked("lmk", "nkl", "mn", "Y", **sizes | {"l": 16}) is None          # vectors are full
    assert asked("lmk", "nkl", "mn", "Y", **sizes | {"k": 7}) is None           # there is less than one
    assert asked("lmk", "nkl", "mn", "Y", **sizes | {"m": 1}) is None           # one element stays an index
    assert asked("lkm", "nkl", "nm", "Y", **sizes) is None                      # lanes run along the rows of X
    assert asked("mk", "nk", "mn", "XY", **sizes) is None


@pytest.mark.parametrize("how", [("i32", "+=", "*"), ("i32", "max=", "+")], ids=str)
@pytest.mark.parametrize(("lying", "sizes"), [
    (MIXED[0], {"a": 2, "b": 1, "k": 3, "l": 2, "m": 17, "n": 2}), (("mkb", "knb", "mnb"), {"m": 17, "k": 2, "b": 3, "n": 2}),
    (("akbg", "gkcd", "gdbac"), {"a": 6, "b": 3, "k": 2, "c": 2, "d": 2, "g": 2}),
    (("gcd", "dfeg", "cfed"), {"g": 2, "c": 2, "d": 3, "f": 4, "e": 4}),
    (("kalg", "lgbk", "gba"), {"k": 2, "a": 2, "l": 3, "b": 20, "g": 2})], ids=str)
def test_the_result_is_that_of_the_text(lying, sizes, how):
    o = op(text(*lying, *how))
    values = {n.upper(): v for n, v in sizes.items()}
    made = matrices(o, values).op
    assert len(made.steps) > len(o.steps)
    check(made)
    arrays = integers(o, values)
    np.testing.assert_array_equal(evaluate(made, values, {}, arrays)["Z"], evaluate(o, values, {}, arrays)["Z"])


def test_calls_ask_for_it_where_vectors_get_fuller():
    few = {"a": 40, "b": 3, "c": 3, "d": 5, "k": 9, "g": 4}
    assert asked("akbg", "gkcd", "gdbac", **few) == 0                           # the result ends in three elements; rows are 120
    assert asked("akbg", "gkcd", "gdbac", **few | {"c": 9}) is None             # in nine
    assert asked("agkb", "gkcd", "gdbac", **few) is None                        # no operand ends in a batch
    assert asked("bkag", "gkc", "gbac", b=9, k=20, a=30, c=4, g=4) == 0         # rows are b and a
    assert asked("kag", "gkc", "gac", k=20, a=30, c=4, g=4) is None             # one index each
    assert asked("kac", "kbc", "abc", k=20, a=30, b=3, c=9) == 0                # a batch comes last
    assert asked("kac", "kbc", "abc", k=20, a=3, b=16, c=9) is None             # lanes run along b then, on copies with c first
    assert asked("kac", "kbc", "abc", k=20, a=3, b=3, c=9) is None              # too few of both
    assert asked("kadc", "kbc", "adbc", k=20, a=30, d=3, b=3, c=9) == 0
    assert asked("kac", "kc", "ac", k=20, a=30, c=9) is None                    # matrix times vector
    assert asked("bgai", "bghi", "iha", b=20, g=3, a=3, h=30, i=4) == 1


def test_what_an_operand_has_together_is_one_row():
    assert asked("gkcab", "dkg", "gdcab", k=9, c=2, a=40, b=3, d=5, g=4) is None  # c, a and b are one dimension of 240
    assert asked("gkbac", "dkg", "gdcab", k=9, c=20, a=4, b=3, d=5, g=4) == 0     # b is alone


def test_numbers_are_all_sizes_of_such_a_product():
    found = find_matrices(op(text("kac", "kbc", "abc")))
    assert dict(numbers(found, {"K": 20, "A": 30, "B": 3, "C": 9})) == {"K": 20, "A": 30, "B": 3, "C": 9}
    assert numbers(found, {"K": 20, "A": 3, "B": 3, "C": 9}) == ()
    assert dict(numbers(found, {"K": 20, "A": 30, "B": 3, "C": 1})) == {"K": 20, "A": 30, "B": 3}
    assert numbers(found, {"K": 1, "A": 30, "B": 3, "C": 9}) == ()


@pytest.mark.parametrize("other", [
    text("mb", "nb", "mnb"),                                                                      # no sum
    text("mkb", "knb", "mnb").replace(" }", " where k <= m }"),
    "op f(X: f32[W, C], F: f32[R, C, D]) -> (Y: f32[D, W - R + 1]) { Y[d, p] += X[p + r, c] * F[r, c, d] }",
    "op f(X: f32[N, N, B], Y: f32[N, B]) -> (Z: f32[N, B]) { Z[i, b] += X[i, j, b] * Y[j, b] }",
])
def test_other_sums_stay(other):
    o = op(other)
    assert numbers(find_matrices(o), dict.fromkeys(o.sizes, 20), "XYZ") == () and in_matrices(flatten(o, ())).op == o


def seen_by(f):
    """What becomes of the Ops that `f` compiles."""
    ops, find = [], f._find

    def look(o, *rest, **more):
        ops.append(o)
        return find(o, *rest, **more)

    f._find = look
    return ops


def test_calls_that_come_again_get_such_a_kernel_and_others_do_not():
    f = polyop.op(text("kac", "kbc", "abc"))
    ops, rng = seen_by(f), np.random.default_rng(0)

    def call(k, a, b, c):
        x, y = rng.integers(-3, 4, (k, a, c)).astype(np.float32), rng.integers(-3, 4, (k, b, c)).astype(np.float32)
        np.testing.assert_array_equal(f(x, y), np.einsum("kac,kbc->abc", x.astype(np.float64), y))

    for k in range(8, 14):
        call(k, 30, 9, 9)
    assert not any("matrices" in str(o) for o in ops)
    for _ in range(4):
        call(8, 30, 9, 9)
    assert "matrices" in str(ops[-1])
    call(15, 30, 9, 10)
    assert sum("matrices" in str(o) for o in ops) == 1
    assert "ends in a batch" in " ".join(kinds(op(text("kac", "kbc", "abc"))))


def test_dimensions_that_are_one_in_a_call_need_no_copy():
    f = polyop.op(text("ghwd", "dcg", "ghwc"))
    ops, rng = seen_by(f), np.random.default_rng(0)
    x, u = rng.integers(-3, 4, (2, 7, 9, 5)).astype(np.float32), rng.integers(-3, 4, (5, 6, 2)).astype(np.float32)
    apart = np.ascontiguousarray(x.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)  # H and W are two: rows are copied
    for view in (x, apart):
        ops.clear()
        for _ in range(4):
            np.testing.assert_array_equal(f(view, u), np.einsum("ghwd,dcg->ghwc", view.astype(np.float64), u))
        assert ("matrices" in str(ops[-1])) is (view is not x)


def test_an_array_is_seen_as_a_matrix_only_in_calls_in_which_it_is_one_piece():
    rng = np.random.default_rng(0)
    x, y = rng.integers(-3, 4, (2, 8, 40)).astype(np.float32), rng.integers(-3, 4, (2, 23, 41, 3)).astype(np.float32)
    for part, one in ((np.ascontiguousarray(y[0, :, :40, :2]), True), (y[0, :, :40, :2], False), (y[0, ::2, :40, :2], False)):
        f = polyop.op(text("lmk", "nkl", "mn"))
        ops = seen_by(f)
        for _ in range(4):
            np.testing.assert_array_equal(f(x, part), np.einsum("lmk,nkl->mn", x.astype(np.float64), part))
        assert ("Y[n_2, k_2]" in str(ops[-1])) is one
    assert "as they lie in the larger operand" in " ".join(kinds(op(text("lmk", "nkl", "mn"))))


@pytest.mark.parametrize("sizes", [("L", "M", "K", "N"), (2, 8, 40, 23)], ids=str)
def test_calls_in_which_an_array_is_one_piece_and_others_may_alternate(sizes):
    size = dict(zip("LMKN", map(str, sizes), strict=True))
    x, y, z = (", ".join(size[d] for d in dims) for dims in ("LMK", "NKL", "MN"))
    f = polyop.op(f"op f(X: f32[{x}], Y: f32[{y}]) -> (Z: f32[{z}]) {{ Z[m, n] += X[l, m, k] * Y[n, k, l] }}")
    rng = np.random.default_rng(0)
    a, b = rng.integers(-3, 4, (2, 8, 40)).astype(np.float32), rng.integers(-3, 4, (23, 41, 4)).astype(np.float32)
    views = (np.ascontiguousarray(b[:, :40, :2]), b[:, :40, :2], b[::-1, 1:, ::2], np.ascontiguousarray(b[:, :40, :2].T).T)
    for view in views * 4:
        np.testing.assert_array_equal(f(a, view), np.einsum("lmk,nkl->mn", a.astype(np.float64), view))


def test_a_result_of_the_caller_with_gaps_is_not_seen_as_one_piece():
    f, rng = polyop.op(text("mokl", "nlk", "nmo")), np.random.default_rng(0)
    x, y = rng.integers(-3, 4, (4, 20, 8, 7)).astype(np.float32), rng.integers(-3, 4, (3, 7, 8)).astype(np.float32)
    right, room = np.einsum("mokl,nlk->nmo", x.astype(np.float64), y), np.full((3, 5, 21), np.nan, np.float32)
    for z in (np.empty((3, 4, 20), np.float32), room[:, :4, :20], room[:, 1:, 1:]):
        for _ in range(4):
            f(x, y, out=z)
            np.testing.assert_array_equal(z, right)


def test_strict_sums_keep_their_order():
    f = polyop.op(text(*MIXED[0]), options=Options(numerics="strict"))
    ops, sizes = seen_by(f), MIXED[1]
    x, y = (np.ones([sizes[i] for i in part], np.float32) for part in MIXED[0][:2])
    for _ in range(4):
        np.testing.assert_array_equal(f(x, y), np.full([sizes[i] for i in MIXED[0][2]], 20))
    assert ops and not any("matrices" in str(o) for o in ops)


SIZES = st.sampled_from([1, 2, 3, 5, 7, 8, 15, 16, 17, 20, 33])


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_order_of_any_indices(data):
    own = [data.draw(st.integers(1, 2), label=w) for w in ("rows", "columns", "depth")]
    own[0] -= data.draw(st.integers(0, 1), label="no rows") * (own[0] == 1)
    batch = data.draw(st.integers(0, 2), label="batch")
    letters = iter("abcdefgh")
    b, m, n, k = ([next(letters) for _ in range(c)] for c in (batch, *own))
    x, y, z = (data.draw(st.permutations(part)) for part in (b + m + k, b + n + k, b + m + n))
    sizes = {i: data.draw(SIZES, label=i) for i in b + m + n + k}
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-3, 4, [sizes[i] for i in part]).astype(np.float32) for part in (x, y)]
    if data.draw(st.booleans(), label="turned"):
        arrays[0] = np.ascontiguousarray(arrays[0].T).T
    f = polyop.op(text("".join(x), "".join(y), "".join(z)))
    right = np.einsum(f"{''.join(x)},{''.join(y)}->{''.join(z)}", arrays[0].astype(np.float64), arrays[1])
    for _ in range(3):
        np.testing.assert_array_equal(f(*arrays), right)
