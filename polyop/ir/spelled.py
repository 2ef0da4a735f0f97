"""Conditions and extents in the words of the language, for messages to users."""

from __future__ import annotations

from polyop.ir.errors import InternalError
from polyop.ir.expr import Affine, Apply, Const, Expr, Quasi, Test, evaluate


def extent(x: Affine) -> str:
    """`x` as a user writes it: `2*N + 1`, `(N - R) / 2`, `D % 8`."""
    parts = []
    for atom, factor in x.terms:
        text = atom if isinstance(atom, str) else _quasi(atom, factor not in (1, -1))
        sign = "- " if factor < 0 else "+ "
        parts.append(sign + (text if factor in (1, -1) else f"{abs(factor)}*{text}"))
    if x.const or not parts:
        parts.append(f"{'-' if x.const < 0 else '+'} {abs(x.const)}")
    text = " ".join(sorted(parts, key=lambda p: p[0] == "-"))  # what is added comes first
    return text[2:] if text[0] == "+" else "-" + text[2:]


def _quasi(q: Quasi, bracket: bool) -> str:
    if q.op in ("min", "max"):
        return f"{q.op}({', '.join(map(extent, q.args))})"
    inner = extent(q.args[0])
    inner = inner if q.args[0].name else f"({inner})"
    text = f"{inner} {'/' if q.op == 'div' else '%'} {q.args[1].const}"
    return f"({text})" if bracket else text


def condition(e: Expr) -> str:
    """A condition on sizes: `D % 8 == 0`, `N >= R`."""
    match e:
        case Const(value=v):
            return "true" if v else "false"
        case Test(tests=tests):
            done, parts = set(), []
            for t in tests:
                if t in done:
                    continue
                equal = t * -1 in tests
                done |= {t, t * -1} if equal else {t}
                parts.append(_compare(t, "==" if equal else ">="))
            return " and ".join(parts) or "true"
        case Apply(fn="not", args=(a,)):
            return f"not ({condition(a)})"
        case Apply(fn="and" | "or", args=args):
            return f" {e.fn} ".join(condition(a) if isinstance(a, Test) else f"({condition(a)})" for a in args)
    raise InternalError(f"spelled: {e} is no condition on sizes")


def _compare(t: Affine, sign: str) -> str:
    left = Affine(tuple((a, f) for a, f in t.terms if f > 0), max(t.const, 0))
    right = Affine(tuple((a, -f) for a, f in t.terms if f < 0), max(-t.const, 0))
    if not left.terms and sign == ">=":
        return f"{extent(right)} <= {extent(left)}"
    if not left.terms:
        left, right = right, left
    return f"{extent(left)} {sign} {extent(right)}"


def holds(e: Expr, sizes: dict[str, int]) -> bool:
    """Whether a condition on sizes is true."""
    match e:
        case Const(value=v):
            return bool(v)
        case Test(tests=tests):
            return all(evaluate(t, sizes) >= 0 for t in tests)
        case Apply(fn="not", args=(a,)):
            return not holds(a, sizes)
        case Apply(fn="and", args=args):
            return all(holds(a, sizes) for a in args)
        case Apply(fn="or", args=args):
            return any(holds(a, sizes) for a in args)
    raise InternalError(f"spelled: {e} is no condition on sizes")
