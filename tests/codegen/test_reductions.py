import numpy as np
import pytest

from polyop.ir.dtypes import BOOL, DTYPES, F16, F32, F64, I32, DType
from polyop.ir.expr import Apply, Const, Scalar
from polyop.ir.op import Monoid, builtin_monoid
from tests.codegen.harness import RUNNABLE, V4, assembly, check, compiled
from tests.codegen.nests import A, ap, lanes, ld, least, loop, nest, reg, rows, st, strip, tensor, work

I = A("i_c", "i_v")
SIZES = (0, 1, 3, 15, 16, 17, 31, 33, 64, 70)
each_target = pytest.mark.parametrize("target", RUNNABLE, ids=lambda t: t.arch)


def monoids(t: DType) -> tuple[str, ...]:
    if t == BOOL:
        return ("and", "or", "bitand", "bitor", "bitxor", "max", "min")
    return ("add", "mul", "max", "min") if t.is_float else ("add", "mul", "max", "min", "bitand", "bitor", "bitxor")


def values(t: DType, shape, seed: int) -> np.ndarray:
    """Numbers whose sums and products every order of evaluation gives alike, nearly."""
    rng = np.random.default_rng(seed)
    if t == BOOL:
        return rng.integers(0, 2, shape).astype(bool)
    if t.is_float:
        return (
            rng.choice([-1.0, 1.0, 1.0, 2.0, 0.5], shape).astype(t.numpy)
            if t.bits == 16
            else rng.uniform(0.5, 1.5, shape).astype(t.numpy)
        )
    return rng.integers(0 if t.kind == "uint" else -50, 50, shape).astype(t.numpy)


@each_target
@pytest.mark.parametrize("t", DTYPES.values(), ids=str)
def test_every_monoid_folds_into_registers_and_memory(t, target):
    x = ld("x", "m", I, t=t)
    buffers = [tensor("x", 3, "N", t=t)]
    head, body, tail = [], [], []
    for name in monoids(t):
        buffers += [
            tensor(f"y_{name}", 3, t=t),
            tensor(f"z_{name}", 3, t=t),
            tensor(f"v_{name}", "N", t=t),
            reg(f"r_{name}", t=t),
        ]
        identity = builtin_monoid(name, t).identity
        head.append(st(ld(f"r_{name}", t=t), Const(identity, t)))
        body += [st(ld(f"r_{name}", t=t), x, name), st(ld(f"z_{name}", "m", t=t), x, name), st(ld(f"v_{name}", I, t=t), x, name)]
        tail.append(st(ld(f"y_{name}", "m", t=t), ld(f"r_{name}", t=t)))
    n = nest(buffers, [loop("m", 3, *head, strip("i", 32, "N", *body), *tail)])
    k = compiled(n, target)
    for size in SIZES:
        arrays = {
            b.name: values(t, tuple(e.const if e.is_constant else size for e, _ in b.dims), i)
            for i, b in enumerate(n.buffers)
            if b.space == "tensor"
        }
        loose = {"f16": 0.1, "bf16": 0.3}.get(t.name)
        check(n, {"N": size}, kernel=k, arrays=arrays, rtol=loose, atol=loose)


@each_target
def test_nan_wins_every_maximum_and_minimum(target):
    for at in (0, 5, 37):
        n = nest(
            [tensor("x", "N"), tensor("y"), tensor("z"), tensor("w", "N")],
            [
                strip(
                    "i",
                    32,
                    "N",
                    st(ld("y"), ld("x", I), "max"),
                    st(ld("z"), ld("x", I), "min"),
                    st(ld("w", I), ld("x", I), "max"),
                )
            ],
        )
        x = np.arange(40).astype("f")
        x[at] = np.nan
        arrays = {"x": x, "y": np.array(0, "f"), "z": np.array(0, "f"), "w": np.where(np.arange(40) == 9, np.nan, 3).astype("f")}
        check(n, {"N": 40}, target, arrays=arrays)


@each_target
@pytest.mark.parametrize("t", (F16, F32, F64), ids=str)
@pytest.mark.parametrize("fn", ("max", "min"))
def test_nan_wins_in_tiles_of_many_running_values(fn, t, target):
    """Wherever it comes from, also a difference of infinities, and whatever comes behind it; of numbers the first of equals."""
    buffers = [tensor("x", 6, "K", t=t), tensor("y", "K", 64, t=t), tensor("z", 6, 64, t=t), reg("r", 6, 64, t=t)]
    total = ld("r", "i", "v", t=t)
    term = ap("add", ld("x", "i", "k", t=t), ld("y", "k", "v", t=t), t=t)

    def tile(*body):
        return rows("i", 6, None, lanes("v", 64, None, *body))
    start = tile(st(total, Const(builtin_monoid(fn, t).identity, t)))
    n = nest(buffers, [start, loop("k", "K", tile(st(total, term, fn))), tile(st(ld("z", "i", "v", t=t), total))], ("K",))
    kernel, rng = compiled(n, target), np.random.default_rng(1)
    assert ("vfixupimmp" in assembly(n, target)) == target.masks
    special = [np.inf, -np.inf, np.nan, -0.0, 0.0, 1.0, -2.0, 0.5]
    for k in (0, 1, 2, 7):
        x, y = (rng.choice(special, shape, p=[0.04] * 3 + [0.176] * 5).astype(t.numpy) for shape in ((6, k), (k, 64)))
        z = np.empty((6, 64), t.numpy)
        assert kernel({"K": k}, {}, {"x": x, "y": y, "z": z}) == 0
        with np.errstate(invalid="ignore"):
            terms = (x[:, :, None] + y[None]).astype(np.float64)
        wanted = getattr(np, fn)(terms, axis=1, initial=-np.inf if fn == "max" else np.inf)
        np.testing.assert_array_equal(z.astype(np.float64), wanted)
        assert k < 7 or {0, 1} == {*np.isnan(wanted).ravel()}


@each_target
def test_a_reduction_starts_from_a_partial_register_for_each_lane(target):
    """sum over rows of exp-free squares: one accumulator for each lane, folded at the end."""
    tail = least(32, A("N", (-1, "i_c")))
    n = nest(
        [tensor("x", "M", "N"), tensor("y", "M"), reg("part", 32), reg("total")],
        [
            loop(
                "m",
                "M",
                lanes("i_v", 32, None, st(ld("part", "i_v"), Const(0.0, F32))),
                loop(
                    "i_c",
                    "N",
                    lanes("i_v", 32, tail, st(ld("part", "i_v"), ap("mul", ld("x", "m", I), ld("x", "m", I)), "add")),
                    step=32,
                ),
                st(ld("total"), Const(0.0, F32)),
                lanes("i_v", 32, None, st(ld("total"), ld("part", "i_v"), "add")),
                st(ld("y", "m"), ld("total")),
            )
        ],
        sizes=("M", "N"),
    )
    k = compiled(n, target)
    for size in SIZES:
        check(n, {"M": 2, "N": size}, kernel=k)


def logaddexp() -> Monoid:
    a, b = Scalar("a", F64), Scalar("b", F64)
    hi, lo = (Apply(f, (a, b), F64) for f in ("max", "min"))
    tail = Apply("log1p", (Apply("exp", (Apply("sub", (lo, hi), F64),), F64),), F64)
    same = Apply("eq", (hi, Const(float("-inf"), F64)), BOOL)
    return Monoid("lse", float("-inf"), None, Apply("select", (same, hi, Apply("add", (hi, tail), F64)), F64))


@each_target
def test_a_monoid_of_the_user_folds_too(target):
    m = logaddexp()
    x = ld("x", I, t=F64)
    n = nest(
        [tensor("x", "N", t=F64), tensor("y", t=F64), tensor("z", t=F64), reg("r", t=F64)],
        [
            st(ld("r", t=F64), Const(float("-inf"), F64)),
            strip("i", 16, "N", st(ld("r", t=F64), x, m), st(ld("z", t=F64), x, m)),
            st(ld("y", t=F64), ld("r", t=F64)),
        ],
    )
    k = compiled(n, target)
    for size in SIZES:
        check(n, {"N": size}, kernel=k, rtol=1e-11, atol=1e-11)


@each_target
@pytest.mark.parametrize("t", (F32, F16), ids=str)
def test_strict_numerics_give_the_bits_of_the_source_order(t, target):
    x, w = ld("x", "m", I, t=t), ld("w", I, t=t)
    e = Apply("add", (Apply("mul", (x, w), t), Const(0.1, t)), t)
    n = nest(
        [tensor("x", 2, "N", t=t), tensor("w", "N", t=t), tensor("y", 2, t=t), tensor("z", 2, "N", t=t), reg("r", t=t)],
        [
            loop(
                "m",
                2,
                st(ld("r", t=t), Const(0.0, t)),
                strip("i", 32, "N", st(ld("r", t=t), e, "add"), st(ld("z", "m", I, t=t), e)),
                st(ld("y", "m", t=t), ld("r", t=t)),
            )
        ],
    )
    k = compiled(n, target, "strict")
    for size in SIZES:
        check(n, {"N": size}, kernel=k, rtol=1e-30, atol=1e-30)


def test_fast_numerics_fuse_and_strict_ones_do_not():
    n = nest(
        [tensor("x", "N"), tensor("y", "N")], [strip("i", 16, "N", st(ld("y", I), ap("mul", ld("x", I), ld("x", I)), "add"))]
    )
    fast, strict = (assembly(n, V4, mode) for mode in ("fast", "strict"))
    assert "vfmadd" in fast and "vfmadd" not in strict


@each_target
def test_an_update_without_lanes_or_rows_counts_them_all(target):
    one = Const(1, I32)
    n = nest(
        [tensor("y", t=I32), tensor("z", "N", t=I32), reg("r", t=I32)],
        [
            st(ld("r", t=I32), Const(0, I32)),
            strip(
                "i",
                32,
                "N",
                rows(
                    "p",
                    3,
                    least(3, A("P")),
                    st(ld("r", t=I32), one, "add"),
                    st(ld("y", t=I32), one, "add"),
                    st(ld("z", I, t=I32), one, "add"),
                ),
            ),
            st(ld("y", t=I32), ld("r", t=I32), "add"),
        ],
        sizes=("N", "P"),
    )
    k = compiled(n, target)
    for size in SIZES:
        for p in (0, 1, 2, 3):
            arrays = {"y": np.zeros((), "i"), "z": np.zeros(size, "i")}
            check(n, {"N": size, "P": p}, kernel=k, arrays=arrays)


@each_target
def test_a_partial_sum_of_rows_goes_into_one_target(target):
    m = A("m_r", "m_p")
    n = nest(
        [tensor("x", "M", "N"), tensor("y", "N"), tensor("z"), work("t", "N", pad=16)],
        [
            strip("i", 16, "N", st(ld("t", I), Const(0.0, F32))),
            loop(
                "m_r",
                "M",
                rows(
                    "m_p",
                    4,
                    least(4, A("M", (-1, "m_r"))),
                    strip("i", 16, "N", st(ld("t", I), ld("x", m, I), "add"), st(ld("z"), ld("x", m, I), "add")),
                ),
                step=4,
            ),
            strip("i", 16, "N", st(ld("y", I), ld("t", I))),
        ],
        sizes=("M", "N"),
    )
    k = compiled(n, target)
    for a, b in ((1, 1), (4, 16), (5, 17), (3, 40), (0, 5)):
        check(n, {"M": a, "N": b}, kernel=k, rtol=1e-4, atol=1e-4)
