"""Operators and loop nests written as text, for tests: Python's own grammar, read by its `ast` module.

    operator("C[m, n] += A[m, k] * B[k, n]", inputs="A[M, K], B[K, N]", outputs="C[M, N]", ranges="m:M n:N k:K")
    nest(op, '''
        buffer acc[6, 64] reg
        for m_r in 0, M, 6:
            for n_v in 0, min(64, N): lanes 64
                C_init(m_r, n_v): C[m_r, n_v] = 0.0
    ''')

A line of a nest is `for i in lower, upper[, step]: [kind [extent]]`, `if a >= 0, b >= 0:`, `else:` or a store,
`<origin>(lift): target = expr`, where the origin is left out (`- target = expr`) if the store only moves data.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from polyop.ir.dtypes import BOOL, DTYPES, F32, I64, DType
from polyop.ir.expr import Affine, Apply, Const, Expr, Load, Number, Scalar, Test, affine, quasi
from polyop.ir.loops import LOCKSTEP, Buffer, For, If, Kind, LoopNest, Node, Space, Store
from polyop.ir.op import Monoid, Op, Param, Range, Step, Tensor, builtin_monoid
from polyop.ir.span import Source, Span

SIGNS = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mult", ast.Div: "div"}
MONOIDS = {"+=": "add", "*=": "mul", "max=": "max", "min=": "min"}


def index(node: ast.expr | str) -> Affine:
    """An index expression; `//` and `%` are floor and remainder, min and max are themselves."""
    if isinstance(node, str):
        node = ast.parse(node.strip(), mode="eval").body
    match node:
        case ast.Constant(value=int(v)):
            return affine(v)
        case ast.Name(id=n):
            return affine(n)
        case ast.UnaryOp(op=ast.USub(), operand=x):
            return index(x) * -1
        case ast.BinOp(left=a, op=ast.Add(), right=b):
            return index(a) + index(b)
        case ast.BinOp(left=a, op=ast.Sub(), right=b):
            return index(a) - index(b)
        case ast.BinOp(left=a, op=ast.Mult(), right=b):
            x, y = index(a), index(b)
            return y * x.const if x.is_constant else x * y.const
        case ast.BinOp(left=a, op=ast.FloorDiv(), right=b):
            return quasi("div", index(a), index(b))
        case ast.BinOp(left=a, op=ast.Mod(), right=b):
            return quasi("mod", index(a), index(b))
        case ast.Call(func=ast.Name(id="min" | "max" as f), args=args):
            return quasi(f, *map(index, args))
    raise ValueError(ast.dump(node))


def tests(text: str) -> tuple[Affine, ...]:
    """`a >= b, c < d` as expressions that are all >= 0."""
    out: list[Affine] = []
    for part in split(text):
        node = ast.parse(part.strip(), mode="eval").body
        assert isinstance(node, ast.Compare)
        left = index(node.left)
        for op, right in zip(node.ops, map(index, node.comparators), strict=True):
            match op:
                case ast.GtE():
                    out.append(left - right)
                case ast.Gt():
                    out.append(left - right - 1)
                case ast.LtE():
                    out.append(right - left)
                case ast.Lt():
                    out.append(right - left - 1)
                case ast.Eq():
                    out += [left - right, right - left]
            left = right
    return tuple(out)


def split(text: str) -> list[str]:
    """At commas outside brackets."""
    parts, depth, start = [], 0, 0
    for i, c in enumerate(text):
        depth += (c in "([") - (c in ")]")
        if c == "," and not depth:
            parts.append(text[start:i])
            start = i + 1
    return [p.strip() for p in [*parts, text[start:]] if p.strip()]


@dataclass
class Reader:
    """Reads expressions over tensors of these dtypes; every other name is an index."""

    dtypes: dict[str, DType]
    scalars: dict[str, DType]
    source: Source | None = None
    line: int = 1
    column: int = 0

    def expr(self, node: ast.expr | str) -> Expr:
        if isinstance(node, str):
            if self.source:
                self.column = self.source.line(self.line).find(node.strip())
            node = ast.parse(node.strip(), mode="eval").body
        match node:
            case ast.Constant(value=v):
                return Const(v, BOOL if isinstance(v, bool) else F32 if isinstance(v, float) else I64)
            case ast.Subscript(value=ast.Name(id=n), slice=at):
                places = at.elts if isinstance(at, ast.Tuple) else [at]
                return Load(n, tuple(map(self.position, places)), self.dtypes[n], (), self.span(node))
            case ast.Name(id=n) if n in self.scalars:
                return Scalar(n, self.scalars[n])
            case ast.Name(id=n) if n in self.dtypes:
                return Load(n, (), self.dtypes[n], (), self.span(node))
            case ast.Name(id="inf"):
                return Const(float("inf"), F32)
            case ast.Name():
                return Number(index(node), F32)
            case ast.UnaryOp(op=ast.USub(), operand=x):
                inner = self.expr(x)
                return Const(-inner.value, inner.dtype) if isinstance(inner, Const) else Apply("neg", (inner,), inner.dtype)
            case ast.BinOp(left=a, op=op, right=b):
                x, y = self.expr(a), self.expr(b)
                return Apply({"mult": "mul"}.get(SIGNS[type(op)], SIGNS[type(op)]), (x, y), x.dtype)
            case ast.Call(func=ast.Name(id="guard"), args=[load, *conditions]):
                inner = self.expr(load)
                assert isinstance(inner, Load)
                guard = tuple(t for c in conditions for t in tests(ast.unparse(c)))
                return Load(inner.source, inner.index, inner.dtype, guard, inner.span)
            case ast.Call(func=ast.Name(id="number"), args=[x]):
                return Number(index(x), F32)
            case ast.IfExp(test=t, body=a, orelse=b):
                x, y = self.expr(a), self.expr(b)
                return Apply("select", (Test(tests(ast.unparse(t))), x, y), x.dtype)
            case ast.Call(func=ast.Name(id=f), args=args):
                inner = tuple(map(self.expr, args))
                return Apply(f, inner, inner[0].dtype)
        raise ValueError(ast.dump(node))

    def position(self, node: ast.expr) -> Affine | Expr:
        return self.expr(node) if any(isinstance(x, ast.Subscript) for x in ast.walk(node)) else index(node)

    def span(self, node: ast.expr) -> Span | None:
        if self.source is None:
            return None
        start = node.col_offset + self.column + 1
        return Span(self.source, self.line, start, self.line, start + (node.end_col_offset or 0) - node.col_offset)


def shaped(text: str) -> list[tuple[str, DType, tuple[Affine, ...]]]:
    """`A: f16[M, K], B[K]` as (name, dtype, shape)."""
    out = []
    for part in split(text):
        m = re.fullmatch(r"(\w+)(?:\s*:\s*(\w+))?\s*(?:\[(.*)\])?", part)
        assert m, part
        out.append((m[1], DTYPES[m[2]] if m[2] else F32, tuple(map(index, split(m[3] or "")))))
    return out


def operator(body: str, *, inputs: str = "", outputs: str, temps: str = "", ranges: str, where: str = "", scalars: str = "",
             updates: tuple[tuple[str, str], ...] = (), sizes: str = "", name: str = "op") -> Op:
    """An Op from lines `T[i] (=|+=|max=|..) expr [| i in 1:N, .. [| condition, ..]]`; `ranges`: what an index runs over."""
    tensors = [Tensor(n, t, s, role) for role, text in (("in", inputs), ("out", outputs), ("temp", temps))
               for n, t, s in shaped(text)]
    default = {}
    for part in ranges.split():
        i, *limits = part.split(":")
        default[i] = (affine(0), index(limits[0])) if len(limits) == 1 else (index(limits[0]), index(limits[1]))
    params = tuple(Param(n, F32) for n in scalars.split())
    source = Source("op.pop", body)
    reader = Reader({t.name: t.dtype for t in tensors}, {p.name: p.dtype for p in params}, source)
    steps = []
    for number, line in enumerate(body.splitlines(), 1):
        if not line.strip():
            continue
        reader.line = number
        text, own, conditions = ([p.strip() for p in line.split("|")] + ["", ""])[:3]
        m = re.fullmatch(r"(\w+(?:\[.*?\])?)\s*(=|\+=|\*=|max=|min=)\s*(.*)", text)
        assert m, text
        target = reader.expr(m[1])
        assert isinstance(target, Load)
        expr = reader.expr(m[3])
        monoid = builtin_monoid(MONOIDS[m[2]], target.dtype) if m[2] != "=" else None
        limits = dict(default)
        for part in split(own):
            i, _, r = part.partition(" in ")
            lo, hi = r.split(":")
            limits[i.strip()] = (index(lo), index(hi))
        words = list(dict.fromkeys(re.findall(r"[A-Za-z_]\w*", f"{m[1]} {m[3]}")))
        indices = [w for w in words if w in limits]
        indices += [i for i in limits if i in own.replace(" in ", " ").split() and i not in indices]
        start = line.find(text) + 1
        where_ = (Test(tests(conditions)),) if conditions else ()
        span = Span(source, number, start, number, start + len(text))
        steps.append(Step(target, monoid, expr, tuple(Range(i, *limits[i]) for i in indices), where_, span))
    named = {n for t in tensors for e in t.shape for n in re.findall(r"[A-Za-z_]\w*", str(e))} | set(sizes.split())
    named -= {"min", "max", "floor", "mod"}
    facts = (Test(tests(where)),) if where else ()
    return Op(name, tuple(tensors), params, tuple(sorted(named)), tuple(steps), facts, updates)


def nest(op: Op, text: str) -> LoopNest:
    """The nest of `text`; the tensors of `op` that are no temporaries are its first buffers."""
    buffers = [Buffer(t.name, t.dtype, tuple((e, 1) for e in t.shape), Space.TENSOR) for t in op.tensors if t.role != "temp"]
    lines: list[tuple[int, str]] = []
    for raw in text.splitlines():
        line = raw.split("#")[0].rstrip()
        if line.strip().startswith("buffer "):
            buffers.append(_buffer(line.strip()[7:]))
        elif line.strip():
            lines.append((len(line) - len(line.lstrip()), line.strip()))
    reader = Reader({b.name: b.dtype for b in buffers}, {p.name: p.dtype for p in op.params})
    body, rest = _block(lines, reader, lines[0][0])
    assert not rest
    return LoopNest(op.name, op.sizes, tuple((p.name, p.dtype) for p in op.params), tuple(buffers), body)


def _buffer(text: str) -> Buffer:
    """`acc: f32[6, N/64] work private pad 16`."""
    m = re.fullmatch(r"(\w+)(?:\s*:\s*(\w+))?\[(.*)\]\s+(work|reg)(\s+private)?(?:\s+pad\s+(\d+))?", text)
    assert m, text
    dims = []
    for part in split(m[3]):
        extent, _, unit = part.partition(" by ")
        dims.append((index(extent), int(unit or 1)))
    return Buffer(m[1], DTYPES[m[2]] if m[2] else F32, tuple(dims), Space(m[4]), None, int(m[6] or 1), bool(m[5]))


def _block(lines: list[tuple[int, str]], reader: Reader, indent: int) -> tuple[tuple[Node, ...], list[tuple[int, str]]]:
    out: list[Node] = []
    while lines and lines[0][0] >= indent:
        assert lines[0][0] == indent, lines[0]
        text, lines = lines[0][1], lines[1:]
        if text.startswith("for "):
            m = re.fullmatch(r"for (\w+) in (.*):\s*(?:(\w+)(?:\s+(\d+))?)?", text)
            assert m, text
            lower, upper, *step = split(m[2])
            kind = Kind(m[3] or "serial")
            body, lines = _block(lines, reader, lines[0][0])
            extent = int(m[4]) if m[4] else None
            assert kind not in LOCKSTEP or extent
            out.append(For(m[1], index(lower), index(upper), body, int(step[0]) if step else 1, kind, extent))
        elif text.startswith("if "):
            then, lines = _block(lines, reader, lines[0][0])
            other: tuple[Node, ...] = ()
            if lines and lines[0] == (indent, "else:"):
                other, lines = _block(lines[1:], reader, lines[1][0])
            out.append(If(tests(text[3:-1]), then, other))
        else:
            out.append(_store(text, reader))
    return tuple(out), lines


def _store(text: str, reader: Reader) -> Store:
    m = re.fullmatch(r"(?:-|(\w+)\((.*?)\):)\s*(\w+(?:\[.*?\])?)\s*(=|\+=|\*=|max=|min=)\s*(.*)", text)
    assert m, text
    target = reader.expr(m[3])
    assert isinstance(target, Load)
    lift = tuple(map(index, split(m[2] or "")))
    reduce: Monoid | None = builtin_monoid(MONOIDS[m[4]], target.dtype) if m[4] != "=" else None
    expr = reader.expr(m[5])
    return Store(m[1] or f"move_{target.source}", lift, m[1], lift, target, reduce, expr)
