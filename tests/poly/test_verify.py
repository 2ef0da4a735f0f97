"""The checker accepts right nests of every kind, and refuses each wrong one with a case that shows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import islpy as isl
import pytest

from polyop.ir.dtypes import F16, F32
from polyop.ir.expr import Affine, Apply, Const, Load, affine, map_loads, substitute
from polyop.ir.loops import For, If, Kind, LoopNest, Node, Prefetch, Store, rebuild, show
from polyop.ir.op import Op, builtin_monoid
from polyop.ir.options import Layout
from polyop.poly.scop import extract
from polyop.poly.verify import first_failure, prove, verdict

from . import nests as n
from .texts import index, nest, operator

SCAN_OP = operator("Y[t] = X[t] + (Y[t - 1] if t >= 1 else 0.0)", inputs="X[N]", outputs="Y[N]", ranges="t:N", where="N <= 8")
TWICE_OP = operator("""a[i] = exp(X[i])
                       Y[i] = a[i] * a[i]""", inputs="X[N]", outputs="Y[N]", temps="a[N]", ranges="i:N")
SHIFT_OP = operator("Y[i] = X[i - 1] | i in 1:N", inputs="X[N]", outputs="Y[N]", ranges="i:N", updates=(("X", "Y"),))
SCALE_OP = operator("Y[i] = X[i] * X[i] | i in 1:N", inputs="X[N]", outputs="Y[N]", ranges="i:N", updates=(("X", "Y"),))
GATHER_OP = operator("Y[b, d] = E[ids[b], d]", inputs="ids: i64[B], E[V, D]", outputs="Y[B, D]", ranges="b:B d:D")
SCATTER_OP = operator("Y[ids[b], d] += X[b, d]", inputs="ids: i64[B], X[B, D]", outputs="Y[V, D]", ranges="b:B d:D")
TURNS_OP = operator("Y[t, b, i] = X[b, i] + (Y[t - 1, b, N - 1 - i] if t >= 1 else 0.0)", inputs="X[B, N]", outputs="Y[T, B, N]",
                    ranges="t:T b:B i:N")
COPIES_OP = operator("Y[b, m] += X[b, k] * A[m, k]", inputs="X[B, K], A[M, K]", outputs="Y[B, M]", ranges="b:B m:M k:K",
                     where="K >= 1")
DOT_OP = operator("C += A[k] * B[k]", inputs="A[K], B[K]", outputs="C", ranges="k:K", where="K <= 64")

RIGHT = {
    "matmul_loops": (n.MATMUL, n.MATMUL_LOOPS),
    "matmul_packed": (n.MATMUL, n.MATMUL_PACKED),
    "bias_relu_packed": (n.BIAS_RELU, n.BIAS_RELU_PACKED),
    "softmax_rows": (n.SOFTMAX, n.SOFTMAX_ROWS),
    "softmax_loops": (n.SOFTMAX, n.SOFTMAX_LOOPS),
    "conv_packed": (n.CONV, n.CONV_PACKED),
    "registers begun in two loops": (TWICE_OP, nest(TWICE_OP, """
        buffer t[] reg
        for i in 0, min(N, 5):
            S0(i): t = exp(X[i])
            S1(i): Y[i] = t * t
        for i in 5, N:
            S0(i): t = exp(X[i])
            S1(i): Y[i] = t * t""")),
    "scan": (SCAN_OP, nest(SCAN_OP, """
        for t in 0, N:
            S0(t): Y[t] = X[t] + (Y[t - 1] if t >= 1 else 0.0)""")),
    "lanes": (TWICE_OP, nest(TWICE_OP, """
        buffer t[8] reg
        for i_t in 0, N, 8:
            for v in 0, min(8, N - i_t): lanes 8
                S0(i_t + v): t[v] = exp(X[i_t + v])
                S1(i_t + v): Y[i_t + v] = t[v] * t[v]""")),
    "update in place": (SCALE_OP, nest(SCALE_OP, """
        for i in 1, N: parallel
            S0(i): Y[i] = X[i] * X[i]""")),
    "shift from the old values set aside": (SHIFT_OP, nest(SHIFT_OP, """
        for i in 1, N: parallel
            S0(i): Y[i] = X[i - 1]""")),
    "turns": (TURNS_OP, nest(TURNS_OP, """
        for b in 0, B:
            for t in 0, T:
                for i in 0, N: parallel
                    S0(t, b, i): Y[t, b, i] = X[b, i] + (Y[t - 1, b, N - 1 - i] if t >= 1 else 0.0)""")),
    "copies for parts of what is shared": (COPIES_OP, nest(COPIES_OP, """
        buffer own[4] work private
        for b in 0, B: parallel
            for k_c in 0, K, 4:
                for k_p in 0, min(4, K - k_c):
                    - own[k_p] = X[b, k_c + k_p]
                for m in 0, M: parallel
                    if k_c <= 0:
                        Y_init(b, m): Y[b, m] = 0.0
                    for k_p in 0, min(4, K - k_c):
                        S0(b, m, k_c + k_p): Y[b, m] += own[k_p] * A[m, k_c + k_p]""")),
    "gather": (GATHER_OP, nest(GATHER_OP, """
        for b in 0, B: parallel
            for d in 0, D:
                S0(b, d): Y[b, d] = E[ids[b], d]""")),
    "gather from a packed table": (GATHER_OP, nest(GATHER_OP, """
        buffer F[D, V] work
        for v in 0, V: parallel
            for d in 0, D:
                - F[d, v] = E[v, d]
        for b in 0, B: parallel
            for d in 0, D:
                S0(b, d): Y[b, d] = F[d, ids[b]]""")),
    "scatter": (SCATTER_OP, nest(SCATTER_OP, """
        for v in 0, V: parallel
            for d in 0, D:
                Y_init(v, d): Y[v, d] = 0.0
        for d in 0, D: parallel
            for b in 0, B:
                S0(b, d): Y[ids[b], d] += X[b, d]""")),
    "fold over lanes": (DOT_OP, nest(DOT_OP, """
        C_init(): C = 0.0
        for k in 0, K: lanes 64
            S0(k): C += A[k] * B[k]""")),
    "below the diagonal": (n.LOWER, n.LOWER_TRIANGLE),
    "padding filled while packing": (n.CONV1, n.CONV1_PADDED),
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_nest_is_proved(name):
    op, given = RIGHT[name]
    failed = first_failure(prove(extract(op), given))
    assert failed is None, failed


# --- mutations -----------------------------------------------------------------------------------------------------

Change = Callable[[LoopNest], LoopNest]
OnLoad = Callable[[Load], Load]


def every(f: Callable[[Node], tuple[Node, ...]]) -> Change:
    """`f` on every node, innermost first."""
    def go(body: tuple[Node, ...]) -> tuple[Node, ...]:
        return tuple(m for x in body for m in f(rebuild(x, go)))
    return lambda given: replace(given, body=go(given.body))


def store(target: str, f: Callable[[Store], Node | None], origin: str | None = "any") -> Change:
    """`f` on the stores to `target` (by this origin); None drops them."""
    def change(x: Node) -> tuple[Node, ...]:
        if isinstance(x, Store) and x.target.source == target and origin in ("any", x.origin):
            new = f(x)
            return (new,) if new else ()
        return (x,)
    return every(change)


def loop(name: str, around: str = "", **changes: object) -> Change:
    """Other fields for the loops called `name` whose text contains `around`."""
    def change(x: Node) -> tuple[Node, ...]:
        mine = isinstance(x, For) and x.index == name and around in "\n".join(show(x, 0))
        return (replace(x, **changes),) if mine else (x,)
    return every(change)


def branch(inside: str, f: Callable[[If], tuple[Node, ...]]) -> Change:
    """`f` on the tests around a store whose text contains `inside`."""
    return every(lambda x: f(x) if isinstance(x, If) and inside in "\n".join(show(x, 0)) else (x,))


def reorder(name: str, *order: int) -> Change:
    """The bodies of the loops called `name` with this many parts in another order."""
    def change(x: Node) -> tuple[Node, ...]:
        mine = isinstance(x, For) and x.index == name and len(x.body) == len(order)
        return (replace(x, body=tuple(x.body[i] for i in order)),) if mine else (x,)
    return every(change)


def buffer(name: str, **changes: object) -> Change:
    return lambda given: replace(given, buffers=tuple(replace(b, **changes) if b.name == name else b for b in given.buffers))


def load(source: str, f: OnLoad) -> Callable[[Store], Store]:
    """`f` on the Loads of `source` in a store's expression."""
    return lambda s: replace(s, expr=map_loads(s.expr, lambda x: f(x) if x.source == source else x))


def at(**values: str) -> OnLoad:
    """A Load with names replaced in its index."""
    env = {k: index(v) for k, v in values.items()}
    return lambda x: replace(x, index=tuple(substitute(p, env) if isinstance(p, Affine) else p for p in x.index))


def shifted(position: int, by: int) -> OnLoad:
    return lambda x: replace(x, index=tuple(p + by * (i == position) for i, p in enumerate(x.index)))


def target(f: OnLoad) -> Callable[[Store], Store]:
    return lambda s: replace(s, target=f(s.target))


def with_(**changes: object) -> Callable[[Store], Store]:
    return lambda s: replace(s, **changes)


def lift(f: Callable[[tuple[Affine, ...]], tuple[Affine, ...]]) -> Callable[[Store], Store]:
    return lambda s: replace(s, lift=f(s.lift))


def drop(s: Store) -> None:
    return None


def twice(s: Store) -> Node:
    return If((), (s, s))


MM, LOOPS, RELU = RIGHT["matmul_packed"], RIGHT["matmul_loops"], RIGHT["bias_relu_packed"]
ROWS, STEPS, CONV = RIGHT["softmax_rows"], RIGHT["softmax_loops"], RIGHT["conv_packed"]
PACKED_TABLE = RIGHT["gather from a packed table"]
SCAN, LANES = RIGHT["scan"], RIGHT["lanes"]
SPILL = "C[m_c + m_p + m_r, n_c + n_r + n_v] ="
ONE, ZERO = Const(1.0, F32), Const(0.0, F32)
ADD, MUL = builtin_monoid("add", F32), builtin_monoid("mul", F32)
SENSE, LENGTH, COMPUTES, ONCE, BOUNDS = "the nest", "no lock-step", "each store", "each instance", "no access"
SET, VALUE, WHOLE, LOCKED, RACE = "nothing is read", "each value", "each reduction", "lock-step loops", "parallel loops"

WRONG: dict[str, tuple[tuple[Op, LoopNest], Change, str]] = {
    # the operands
    "bias of the first column": (RELU, store("D", load("b", at(n_v="0")), "S1"), VALUE),
    "left operand ignores k_p": (MM, store("acc", load("A", at(k_p="0")), "S0"), VALUE),
    "panel read one lane off": (MM, store("acc", load("right", shifted(2, -1)), "S0"), BOUNDS),
    "panel read one row off": (MM, store("acc", load("right", at(k_p="max(k_p - 1, 0)")), "S0"), VALUE),
    "image shifted by a row": (CONV, store("acc", load("I", at(r="max(r - 1, 0)")), "S0"), BOUNDS),
    "image shifted by a column": (CONV, store("acc", load("I", at(s="max(s, 1)")), "S0"), VALUE),
    "guard lost": (CONV, store("acc", load("I", lambda x: replace(x, guard=())), "S0"), BOUNDS),
    "guard too strong": (CONV, store("acc", load("I", lambda x: replace(x, guard=(*x.guard, index("p - 1")))), "S0"), COMPUTES),
    "panel of the first column block": (MM, store("right", load("B", at(n_c="0"))), VALUE),
    "fill from the first row of the tile": (MM, store("acc", load("C", at(m_p="0")), None), VALUE),
    "lift upside down": (STEPS, store("e", lift(lambda x: (x[0], index("C - 1 - c")))), VALUE),
    # the scalar computation
    "another function": (MM, store("acc", lambda s: replace(s, expr=replace(s.expr, fn="add")), "S0"), COMPUTES),
    "operands of a division swapped": (
        ROWS, store("Y", lambda s: replace(s, expr=replace(s.expr, args=s.expr.args[::-1])), "S3"), VALUE),
    "another constant": (MM, store("acc", with_(expr=ONE), "C_init"), COMPUTES),
    "product instead of sum": (MM, store("acc", with_(reduce=MUL), "S0"), COMPUTES),
    "assignment instead of sum": (MM, store("acc", with_(reduce=None), "S0"), COMPUTES),
    "a move that computes": (MM, store("C", lambda s: replace(s, expr=Apply("relu", (s.expr,), F32)), None), COMPUTES),
    "sums kept in half precision": (
        MM, lambda g: buffer("acc", dtype=F16)(store("acc", target(lambda x: replace(x, dtype=F16)))(g)), SENSE),
    # which instances run
    "depth loop one short": (MM, loop("k_p", upper=index("min(512, K - k_c) - 1")), ONCE),
    "row loop one long": (LOOPS, loop("m", "A[", upper=index("M + 1")), ONCE),
    "loop starts late": (STEPS, loop("c", "exp", lower=affine(1)), ONCE),
    "tiles leave a gap": (ROWS, loop("c_t", "/", step=65), ONCE),
    "tiles overlap": (ROWS, loop("c_t", "exp", step=32), ONCE),
    "update missing": (LOOPS, store("C", drop, "S0"), ONCE),
    "update twice": (LOOPS, store("C", twice, "S0"), ONCE),
    "init missing": (MM, store("acc", drop, "C_init"), ONCE),
    "nothing written where nothing is summed": (MM, lambda g: replace(g, body=g.body[1:]), ONCE),
    "lift of another row": (MM, store("acc", lift(lambda x: (x[0] + 1, *x[1:])), "S0"), ONCE),
    "lift transposed": (LOOPS, store("C", lift(lambda x: (x[1], x[0], x[2])), "S0"), ONCE),
    "fill and init swapped": (MM, branch("C[", lambda x: (replace(x, then=x.other, other=x.then),) if x.other else (x,)), ONCE),
    "last chunk finished twice": (RELU, branch("relu", lambda x: (*x.then, *x.other)), ONCE),
    # order and lifetime
    "pack under a wrong test": (
        MM, branch("right", lambda x: (replace(x, tests=(index("m_r - 6"),)),) if not x.other else (x,)), SET),
    "no pack": (MM, store("right", drop), SET),
    "no fill": (MM, store("acc", drop, None), SET),
    "no spill": (MM, store("C", drop, None), SET),
    "no start": (ROWS, store("top_lanes", drop, None), SET),
    "update before init": (MM, reorder("n_v", 1, 0, 2), SET),
    "pack after use": (RELU, reorder("n_c", 1, 0), SET),
    "some rows not spilled": (MM, loop("m_p", SPILL, upper=index("min(5, M - m_c - m_r)"), extent=5), SET),
    "last row not spilled": (MM, loop("m_p", SPILL, upper=index("min(6, M - m_c - m_r) - 1")), SET),
    "register kept over chunks": (MM, lambda g: branch("acc", lambda x: (replace(x, then=()),) if x.other else (x,))(g), SET),
    "panel of the chunk before": (
        RELU, every(lambda x: (If((index("-k_c"),), (x,)),) if isinstance(x, For) and x.index == "k_x" else (x,)), VALUE),
    "private memory carried between threads": (MM, loop("m_r", kind=Kind.PARALLEL), SET),
    "private memory read outside": (STEPS, buffer("e", private=True), SET),
    # reductions in parts
    "spill before update": (MM, reorder("n_v", 0, 2, 1), WHOLE),
    "fold before the updates": (ROWS, reorder("r", 0, 1, 3, 2, 4, 5, 6, 7, 8), WHOLE),
    "fold twice": (ROWS, store("total", twice, None), WHOLE),
    "fold missing": (ROWS, store("total", drop, None), WHOLE),
    "fold with another operator": (ROWS, store("top", with_(reduce=ADD), None), WHOLE),
    "half of the lanes folded": (ROWS, loop("c_v", "top[0] max=", upper=affine(32), extent=32), WHOLE),
    "partial results start from another number": (ROWS, store("top_lanes", with_(expr=ZERO), None), WHOLE),
    "result before it is whole": (ROWS, reorder("r", 0, 1, 2, 3, 4, 5, 6, 8, 7), WHOLE),
    # memory
    "accumulator shared by rows": (MM, store("acc", target(at(m_p="0"))), SET),
    "accumulator of the rows shared everywhere": (
        MM, lambda g: store("C", load("acc", at(m_p="0")), None)(store("acc", target(at(m_p="0")))(g)), VALUE),
    "lanes over the reduction": (LOOPS, loop("k", kind=Kind.LANES, upper=index("min(K, 64)"), extent=64), ONCE),
    "buffer one too small": (MM, buffer("acc", dims=((affine(5), 1), (affine(64), 1))), BOUNDS),
    "panel index in no whole units": (MM, store("right", target(shifted(0, 1))), BOUNDS),
    "panels of another width": (MM, buffer("right", dims=((affine(512), 48), (affine(512), 1), (affine(64), 1))), BOUNDS),
    "lock-step loop longer than its extent": (MM, loop("m_p", extent=4), LENGTH),
    # concurrency
    "lanes over a carried dimension": (SCAN, loop("t", kind=Kind.LANES, upper=index("min(8, N)"), extent=8), LOCKED),
    "one register for all lanes": (LANES, lambda g: store("Y", load("t", at(v="0")))(store("t", target(at(v="0")))(g)), LOCKED),
    "parallel over the reduction": (LOOPS, loop("k", kind=Kind.PARALLEL), RACE),
    "parallel over chunks": (MM, loop("k_c", kind=Kind.PARALLEL), RACE),
    "register read in another loop": (RIGHT["registers begun in two loops"], lambda g: nest(TWICE_OP, """
        buffer t[] reg
        for i in 0, min(N, 1):
            S0(i): t = exp(X[i])
        for i in 0, min(N, 1):
            S1(i): Y[i] = t * t
        for i in 1, N:
            S0(i): t = exp(X[i])
            S1(i): Y[i] = t * t"""), SET),
    "register shared by threads": (ROWS, loop("c_t", "total_lanes", kind=Kind.PARALLEL), SET),
    "private memory carried between runs of a parallel loop": (
        MM, lambda g: loop("n_r", kind=Kind.PARALLEL)(loop("m_c", kind=Kind.SERIAL)(g)), SET),
    "turns of one parallel loop inside another that meet": (RIGHT["turns"], loop("b", kind=Kind.PARALLEL), RACE),
    "private memory written by some of the iterations that share it": (
        RIGHT["copies for parts of what is shared"], loop("k_p", "own[k_p] = X", kind=Kind.PARALLEL), SET),
    "private memory of another iteration of the loop that has it": (
        RIGHT["copies for parts of what is shared"], every(lambda x: (If((index("-b"),), (x,)),) if isinstance(x, For)
                                                           and "own[k_p] = X" in show(x, 0)[1] else (x,)), SET),
    "work space not private": (MM, buffer("right", private=False), RACE),
    "parallel inside lanes": (MM, loop("k_p", kind=Kind.PARALLEL), SENSE),
    "inout overwritten too early": (RIGHT["update in place"], lambda g: nest(SCALE_OP, """
        for i in 0, N:
            - Y[i] = X[N - 1 - i]
        for i in 1, N:
            S0(i): Y[i] = X[i] * X[i]
        for i in 0, min(N, 1):
            - Y[0] = X[N - 1]"""), VALUE),
    "inout not kept where nothing is written": (RIGHT["shift from the old values set aside"], lambda g: nest(SHIFT_OP, """
        for i in 0, N:
            - Y[i] = X[N - 1 - i]
        for i in 1, N:
            S0(i): Y[i] = X[i - 1]"""), VALUE),
    "shift of new values": (RIGHT["shift from the old values set aside"], lambda g: nest(SHIFT_OP, """
        for i in 1, N:
            S0(i): Y[i] = Y[i - 1]"""), VALUE),
    "gather from too large a table": (PACKED_TABLE, buffer("F", dims=((index("D"), 1), (index("V + 1"), 1))), COMPUTES),
    "gather by another index": (RIGHT["gather"], store("Y", load("ids", at(b="B - 1 - b"))), VALUE),
    "part of a table packed": (PACKED_TABLE, loop("v", upper=index("V - 1")), SET),
    "scatter on threads": (RIGHT["scatter"], loop("b", kind=Kind.PARALLEL), RACE),
    "scatter that assigns": (RIGHT["scatter"], store("Y", with_(reduce=None), "S0"), SENSE),
    "padding with ones": (RIGHT["padding filled while packing"], store("P", lambda s: replace(s, expr=Apply(
        "select", (*s.expr.args[:2], ONE), F32))), VALUE),
    "index of no loop": (LOOPS, store("C", load("A", at(k="z")), "S0"), SENSE),
    "store to an input": (LOOPS, store("C", target(lambda x: replace(x, source="A")), "C_init"), SENSE),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_nest_is_refused_with_a_witness(name):
    (op, given), change, claim = WRONG[name]
    broken = change(given)
    assert broken != given, "the mutation changed nothing"
    failed = first_failure(prove(extract(op), broken))
    assert failed is not None
    assert failed.witness and "quota" not in failed.witness, failed
    assert failed.claim.startswith(claim), failed


def test_the_first_failure_ends_the_list():
    (op, given), change, _ = WRONG["depth loop one short"]
    assert [p.holds for p in prove(extract(op), change(given))] == [True, True, True, False]


def test_a_nest_for_one_regime_holds_only_there():
    short = operator("Y[i] = exp(X[i])", inputs="X[N]", outputs="Y[N]", ranges="i:N")
    given = nest(short, """
        for i in 0, min(N, 64): lanes 64
            S0(i): Y[i] = exp(X[i])""")
    scop = extract(short)
    assert first_failure(prove(scop, given, isl.Set("[N] -> { : N <= 64 }"))) is None
    failed = first_failure(prove(scop, given))
    assert failed is not None and failed.witness == "N = 65: S0[64] does not run"


@pytest.mark.parametrize(("assumed", "given", "holds"), [
    (1, 1, True), (0, 0, True), (None, 0, True), (1, 0, False), (0, 1, False), (1, None, False),
])
def test_a_stride_of_1_that_tensors_of_the_call_do_not_have_is_refused(assumed, given, holds):
    op = operator("Y[i, j] = X[i, j]", inputs="X[N, M]", outputs="Y[N, M]", ranges="i:N j:M")
    made = nest(op, """
        for i in 0, N:
            for j in 0, M:
                S0(i, j): Y[i, j] = X[i, j]""")
    made = replace(made, buffers=tuple(replace(b, unit=assumed if b.name == "X" else None) for b in made.buffers))
    failed = first_failure(prove(extract(op), made, layout=Layout((("X", given), ("Y", 1)))))
    assert (failed is None) == holds
    assert failed is None or "has no stride of 1 there" in failed.witness


def test_an_expression_of_900_terms_is_compared():
    op = operator("Y[i] = X[i]", inputs="X[N]", outputs="Y[N]", ranges="i:N")
    long = op.steps[0].expr
    for _ in range(900):
        long = Apply("add", (long, op.steps[0].expr), F32)
    op = replace(op, steps=(replace(op.steps[0], expr=long),))
    right = store("Y", with_(expr=long))(nest(op, """
        for i in 0, N:
            S0(i): Y[i] = X[i]"""))
    assert first_failure(prove(extract(op), right)) is None
    wrong = store("Y", with_(expr=Apply("add", (long, long), F32)))(right)
    failed = first_failure(prove(extract(op), wrong))
    assert failed is not None and failed.claim.startswith(COMPUTES)


def test_a_prefetch_may_lie_outside_its_buffer():
    _, given = RIGHT["scan"]
    ahead = loop("t", body=(Prefetch(Load("X", (index("t + 64"),), F32)), *given.body[0].body))
    assert first_failure(prove(extract(SCAN_OP), ahead(given))) is None


def test_padding_of_work_space_may_be_written():
    op, given = RIGHT["below the diagonal"]
    padded = buffer("s", pad=16, dims=((index("S"), 1), (index("S"), 1)))(given)
    extra = nest(op, """
        buffer s[S, S] work pad 16
        for i in 0, S:
            for j in 0, (S + 15) // 16 * 16:
                - s[i, j] = 0.0""")
    assert first_failure(prove(extract(op), replace(padded, body=extra.body + given.body))) is None


def test_what_is_not_decided_within_the_quota_is_not_proved(monkeypatch):
    monkeypatch.setattr(verdict, "OPERATIONS", 50)
    failed = first_failure(prove(extract(n.MATMUL), n.MATMUL_PACKED))
    assert failed is not None and failed.witness == verdict.UNDECIDED
    monkeypatch.undo()
    assert first_failure(prove(extract(n.MATMUL), n.MATMUL_PACKED)) is None


@pytest.mark.parametrize("name, most", [("softmax_rows", 60_000), ("matmul_packed", 160_000), ("conv_packed", 210_000)])
def test_a_proof_is_cheap(name, most, monkeypatch):
    """Counted in operations of isl for the costliest claim: 80,000 take about 50 ms."""
    monkeypatch.setattr(verdict, "OPERATIONS", most)
    op, given = RIGHT[name]
    assert first_failure(prove(extract(op), given)) is None
