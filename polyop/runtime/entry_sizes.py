"""Machine code that writes the sizes of a call into a plan: what `entry.ll` follows where a look is new and its outline is not.

The function gets the look of the call, in which shapes and strides stand, and a copy of the plan of another call with the same
outline. It does what binding does (bind.py) for all that depends on sizes, and returns 0; or not 0, if this call needs the
way through Python: sizes that contradict, a fact that does not hold, a result that is empty. Results of LARGEST bytes and more
lie upon blocks that are used again, for which the plan has another way.

Kernels may assume of sizes that all are at least 1, and that those in `Options.ones` are 1 (ir/options.py); an outline shows
both. They may see dimensions as one that lie one after the other (`CallPlan.runs`), which is tested here. All else that sizes and
strides decide about a kernel is speed: an outline shows sizes up to a factor of two, and which dimensions lie so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from polyop.ir.errors import InternalError
from polyop.ir.expr import Affine, Apply, Const, Expr, Quasi, Test
from polyop.ir.loops import IS_FIRST
from polyop.ir.target import PAGE
from polyop.runtime import blocks
from polyop.runtime.call import LONG_POINTS, CallPlan
from polyop.runtime.estimate import boxes

NAME = "polyop_sizes"
LARGEST = 1 << 20   # bytes of a result that the C library, or torch, is asked for
HEAD = 12           # words of a plan before its row
LONG = 2            # which of them says whether others may run meanwhile
MEMORY = 3          # which of them says the bytes of work memory
_MOST = 1 << 31     # no extent, and no count of elements, is larger
_LINE = 64


@dataclass(frozen=True, slots=True)
class Array:
    """An array among the values.

    at              where its rank stands in the look; behind it, extents and strides in turn
    shift           how strides are counted there: 1 << shift an element
    shape, strides  those of the call that the plan was made for, as the look has them
    """

    at: int
    shift: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Fresh:
    """A new result: its first word in a plan, and how it comes about and of which object (both are words), small or large."""

    at: int
    small: tuple[int, int]
    large: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Places:
    """Where in a plan is what: the first word of each written array, each new result, the first word of each work buffer."""

    written: tuple[int, ...]
    fresh: tuple[Fresh, ...]
    work: tuple[int, ...]


@dataclass(slots=True)
class _Text:
    """The body of the function as it grows; values are names or numbers of LLVM."""

    lines: list[str] = field(default_factory=list)
    good: list[str] = field(default_factory=list)

    def new(self, text: str) -> str:
        self.lines.append(f"  %v{len(self.lines)} = {text}")
        return f"%v{len(self.lines) - 1}"

    def op(self, name: str, a: str | int, b: str | int) -> str:
        return self.new(f"{name} i64 {a}, {b}")

    def call(self, name: str, a: str | int, b: str | int) -> str:
        return self.new(f"call i64 @llvm.{name}.i64(i64 {a}, i64 {b})")

    def load(self, index: int) -> str:
        return self.new(f"load i64, ptr {self.new(f'getelementptr i64, ptr %look, i64 {index}')}")

    def store(self, value: str | int, index: int) -> None:
        at = self.new(f"getelementptr i64, ptr %plan, i64 {index}")
        self.lines.append(f"  store i64 {value}, ptr {at}")

    def test(self, sort: str, a: str | int, b: str | int) -> str:
        return self.new(f"icmp {sort} i64 {a}, {b}")

    def need(self, claim: str) -> None:
        self.good.append(claim)

    def either(self, a: str, b: str) -> str:
        return self.new(f"or i1 {a}, {b}")

    def product(self, factors: list[str]) -> str:
        """The product of factors of at least 0, as far as it is not too large."""
        total = "1"
        for f in factors:
            total = self.call("smin", self.op("mul", total, self.call("smin", f, _MOST)), _MOST)
        return total


def text(plan: CallPlan, arrays: Mapping[int, Array], places: Places) -> str | None:
    """The function as LLVM IR; None if this plan has arrays that the look does not show.

    arrays   by their position among the values
    """
    t, op = _Text(), plan.op
    given = _given(plan, arrays)
    if any(x.name not in given for x in op.inputs):
        return None
    shapes = {n: [t.load(a.at + 1 + 2 * d) for d in range(len(op.tensor(n).shape))] for n, a in given.items()}
    known: dict[str, str] = {p.name: str(plan.sizes[p.name]) for p in op.params if p.is_size}
    for x in op.inputs:
        for d, e in enumerate(x.shape):
            if e.name is not None:
                known.setdefault(e.name, shapes[x.name][d])
    if not set(op.sizes) <= known.keys():
        return None
    for n in op.sizes:
        t.need(t.test("ule", known[n], _MOST))
    for whole, parts in plan.runs.sizes.items():
        known[whole] = t.product([known[n] for n in parts])
        t.need(t.test("slt", known[whole], _MOST))
    for name, dims in shapes.items():
        for e, got in zip(op.tensor(name).shape, dims, strict=True):
            t.need(t.test("eq", _value(t, e, known), got))
    for fact in op.facts:
        t.need(_holds(t, fact, known))
    _length(t, plan, known)
    _row(t, plan, given, shapes, known)
    _written(t, plan, given, shapes, places)
    _fresh(t, plan, known, places)
    _work(t, plan, known, places)
    good = "true"
    for claim in t.good:
        good = t.new(f"and i1 {good}, {claim}")
    t.lines.append(f"  %bad = xor i1 {good}, true\n  %answer = zext i1 %bad to i64\n  ret i64 %answer")
    head = "".join(f"declare i64 @llvm.{f}.i64(i64, i64)\n" for f in ("smin", "smax"))
    head += "declare i64 @llvm.abs.i64(i64, i1)\n"
    return f'target triple = "x86_64-unknown-linux-gnu"\n\n{head}\ndefine i64 @{NAME}(ptr %look, ptr %plan) {{\n' + \
        "\n".join(t.lines) + "\n}\n"


def _given(plan: CallPlan, arrays: Mapping[int, Array]) -> dict[str, Array]:
    """The arrays of a call by the tensor that they are."""
    positions = {n: k for k, n in enumerate(plan.names)}
    same = {o: i for i, o in plan.op.updates}
    found = {}
    for x in (*plan.op.inputs, *plan.op.outputs):
        a = arrays.get(positions.get(same.get(x.name, x.name), -1))
        if a is not None:
            found[x.name] = a
    return found


def _value(t: _Text, x: Affine, known: Mapping[str, str]) -> str:
    """What `x` is in this call; as `evaluate` of ir/expr.py."""
    total = str(x.const)
    for atom, factor in x.terms:
        value = known[atom] if isinstance(atom, str) else _quasi(t, atom, known)
        total = t.op("add", total, value if factor == 1 else t.op("mul", value, factor))
    return total


def _quasi(t: _Text, q: Quasi, known: Mapping[str, str]) -> str:
    args = [_value(t, a, known) for a in q.args]
    if q.op in ("min", "max"):
        total = args[0]
        for a in args[1:]:
            total = t.call("s" + q.op, total, a)
        return total
    rest = t.op("srem", args[0], args[1])
    below = t.new(f"zext i1 {t.test('slt', rest, 0)} to i64")
    if q.op == "div":
        return t.op("sub", t.op("sdiv", args[0], args[1]), below)
    return t.op("add", rest, t.op("mul", below, args[1]))


def _holds(t: _Text, e: Expr, known: Mapping[str, str]) -> str:
    """Whether a condition on sizes is true; as `holds` of ir/spelled.py."""
    match e:
        case Const(value=v):
            return "true" if v else "false"
        case Test(tests=tests):
            return _all(t, "and", [t.test("sge", _value(t, x, known), 0) for x in tests])
        case Apply(fn="not", args=(a,)):
            return t.new(f"xor i1 {_holds(t, a, known)}, true")
        case Apply(fn="and" | "or", args=args):
            return _all(t, e.fn, [_holds(t, a, known) for a in args])
    raise InternalError(f"entry: {e} is no condition on sizes")


def _all(t: _Text, fn: str, claims: list[str]) -> str:
    total = "true" if fn == "and" else "false"
    for c in claims:
        total = t.new(f"{fn} i1 {total}, {c}")
    return total


def _strides(t: _Text, a: Array, shape: list[str]) -> list[str]:
    """Strides in elements. Those of one element mean nothing."""
    out = []
    for d, n in enumerate(shape):
        raw = t.load(a.at + 2 + 2 * d)
        if a.shift:
            whole = t.test("eq", t.op("and", raw, (1 << a.shift) - 1), 0)
            t.need(t.either(whole, t.test("eq", n, 1)))
        out.append(t.op("ashr", raw, a.shift) if a.shift else raw)
    return out


def _length(t: _Text, plan: CallPlan, known: Mapping[str, str]) -> None:
    """Whether the call takes long, as `work` counts points; else the plan says it for all calls."""
    steps, total = boxes(plan.op), "0"
    if steps is None:
        return
    for extents in steps:
        total = t.op("add", total, t.product([t.call("smax", _value(t, e, known), 0) for e in extents]))
    t.store(t.new(f"zext i1 {t.test('sge', total, LONG_POINTS)} to i64"), LONG)


def _row(t: _Text, plan: CallPlan, given: Mapping[str, Array], shapes: Mapping[str, list[str]], known: Mapping[str, str]) -> None:
    """Sizes, and the strides of every tensor."""
    signature = plan.kernel.binary.signature
    for i, n in enumerate(signature.sizes):
        if n != IS_FIRST:  # which a plan has as it is in all calls but the first
            t.store(known[n], HEAD + 2 + i)
    for slot, name in _by_slot(plan).items():
        shape = plan.op.tensor(name).shape
        if name in given:
            strides = _strides(t, given[name], shapes[name])
        else:
            strides, step = [], "1"
            for e in reversed(shape):
                strides.insert(0, step)
                step = t.op("mul", step, t.call("smin", _value(t, e, known), _MOST))
        for d, run in enumerate(plan.runs.of[name]):
            whole = _joined(t, given[name], shapes[name], strides, run) if name in given else strides[run[-1]]
            t.store(whole, HEAD + slot + 1 + d)


def _joined(t: _Text, a: Array, shape: list[str], strides: list[str], run: tuple[int, ...]) -> str:
    """The stride of the dimensions `run` as one, which their elements have to be; as `Dims.strides` of rewrite/flatten.py.

    An outline shows which of them have one element, and do not count.
    """
    long = [d for d in run if a.shape[d] != 1]
    for outer, inner in pairwise(long):
        t.need(t.test("eq", strides[outer], t.op("mul", strides[inner], shape[inner])))
    return strides[long[-1] if long else run[-1]]


def _reach(t: _Text, plan: CallPlan, name: str, a: Array, shape: list[str]) -> tuple[str, str]:
    """The bytes [first, last) of an array, from its address."""
    bytes_ = plan.op.tensor(name).dtype.bytes_
    first, last = "0", "1"
    for n, s in zip(shape, _strides(t, a, shape), strict=True):
        r = t.op("mul", t.op("sub", n, 1), s)
        first, last = t.op("add", first, t.call("smin", r, 0)), t.op("add", last, t.call("smax", r, 0))
    return t.op("mul", first, bytes_), t.op("mul", last, bytes_)


def _written(t: _Text, plan: CallPlan, given: Mapping[str, Array], shapes: Mapping[str, list[str]], places: Places) -> None:
    """Where written arrays end, and that none of them overlaps itself: each stride exceeds all that smaller ones reach.

    Which of them are smaller is taken from the call that the plan was made for; where it is not so, the test fails.
    """
    by_slot = _by_slot(plan)
    reach = {slot: _reach(t, plan, n, given[n], shapes[n]) for slot, n in by_slot.items() if n in given}
    for (_, slot, _, _, _, others), at in zip(plan.written, places.written, strict=True):
        t.store(reach[slot][0], at + 2)
        t.store(reach[slot][1], at + 3)
        for k, (other, _, _) in enumerate(others):
            t.store(reach[other][0], at + 5 + 3 * k + 1)
            t.store(reach[other][1], at + 5 + 3 * k + 2)
        name, inner = by_slot[slot], "0"
        a, strides = given[name], _strides(t, given[name], shapes[name])
        for d in sorted(range(len(strides)), key=lambda d: abs(a.strides[d])):
            n, s = shapes[name][d], strides[d]
            size = t.new(f"call i64 @llvm.abs.i64(i64 {s}, i1 false)")
            t.need(t.either(t.test("sgt", size, inner), t.test("eq", n, 1)))
            inner = t.op("add", inner, t.op("mul", t.op("sub", n, 1), size))


def _fresh(t: _Text, plan: CallPlan, known: Mapping[str, str], places: Places) -> None:
    """Extents and bytes of new results, and how they come about."""
    by_slot = _by_slot(plan)
    for (slot, *_), f in zip(plan.fresh, places.fresh, strict=True):
        x = plan.op.tensor(by_slot[slot])
        extents = [_value(t, e, known) for e in x.shape]
        for d, n in enumerate(extents):
            t.need(t.test("sge", n, 1))
            t.store(n, f.at + 5 + d)
        elems = t.product(extents)
        t.need(t.test("slt", elems, _MOST))
        bytes_ = t.op("mul", elems, x.dtype.bytes_)
        is_small = t.test("slt", bytes_, LARGEST)
        for k, (small, large) in enumerate(zip(f.small, f.large, strict=True), 1):
            t.store(t.new(f"select i1 {is_small}, i64 {small}, i64 {large}"), f.at + k)
        t.store(t.op("add", bytes_, blocks.ALIGN), f.at + 3)


def _by_slot(plan: CallPlan) -> dict[int, str]:
    """The tensors by where in the row their addresses stand."""
    signature = plan.kernel.binary.signature
    at, found = 2 + len(signature.sizes) + len(signature.scalars), {}
    for b in signature.tensors:
        found[at] = b.name
        at += 1 + len(plan.runs.of[b.name])
    return found


def _work(t: _Text, plan: CallPlan, known: Mapping[str, str], places: Places) -> None:
    """Where work buffers begin, and how much memory they take together; as `room` of ir/module.py and `Kernel.prepare`."""
    total = "0"
    each = [b for b in plan.kernel.binary.signature.work if plan.held is None or not b.lasting]
    for b, at in zip(each, places.work, strict=True):
        t.store(total, at + 1)
        counts = []
        for e, u in b.dims:
            n = t.call("smax", _value(t, e, known), 0)
            counts.append(t.op("sdiv", t.op("add", n, u - 1), u))
        if counts and b.pad > 1:
            counts[-1] = t.op("mul", t.op("sdiv", t.op("add", counts[-1], b.pad - 1), b.pad), b.pad)
        elems = t.product(counts)
        t.need(t.test("slt", elems, _MOST))
        lines = t.op("sdiv", t.op("add", t.op("mul", elems, b.dtype.bytes_), _LINE - 1), _LINE)
        one, count = t.op("mul", lines, _LINE), plan.row[1] if b.private else 1
        total = t.op("add", total, t.op("mul", t.op("add", one, PAGE), count) if count > 1 else one)
        if b.beyond:
            t.need(t.test("slt", counts[-1], _MOST // b.beyond))
            behind = t.op("mul", t.op("mul", counts[-1], b.beyond), b.dtype.bytes_)
            total = t.op("add", total, t.op("mul", t.op("sdiv", t.op("add", behind, _LINE - 1), _LINE), _LINE))
    t.store(total, MEMORY)


