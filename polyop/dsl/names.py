"""Names: which are taken, which one was meant, and which are safe in generated text."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from polyop.dsl import syntax as s
from polyop.ir.dtypes import DTYPES
from polyop.ir.scalars import ARITY

FUNCTIONS = {
    **{n: ARITY[n] for n in (
        "exp", "exp2", "expm1", "log", "log2", "log1p", "sqrt", "rsqrt", "pow", "sin", "cos", "tan", "asin", "acos", "atan",
        "atan2", "sinh", "cosh", "tanh", "sigmoid", "erf", "gelu", "silu", "relu", "softplus", "abs", "sign", "floor", "ceil",
        "round", "trunc", "fma", "nextafter", "isnan", "isinf", "isfinite")},
    "min": -1, "max": -1,
}
"""What a user may call, and with how many arguments (-1: two or more)."""

REDUCTIONS = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}
"""`sum[k](e)`: the monoid of each."""

REDUCING = {"+": "add", "*": "mul", "max": "max", "min": "min", "and": "and", "or": "or",
            "&": "bitand", "|": "bitor", "^": "bitxor"}
"""`+=`: the monoid of each; argmax and argmin are no monoids."""

CONSTANTS = {"inf": float("inf"), "nan": float("nan"), "pi": 3.141592653589793}

_ISL = {"exists", "and", "or", "implies", "not", "infty", "infinity", "nan", "min", "max", "rat", "true", "false", "ceild",
        "floord", "mod", "ceil", "floor", "int"}          # isl reads them in any case
_KEYWORDS = """alignas alignof asm auto bool break case catch char class const constexpr continue default delete do double
dynamic_cast else enum explicit export extern float for friend goto if inline long mutable namespace new noexcept nullptr operator
private protected public register restrict return short signed sizeof static static_assert struct switch template this throw try
typedef typeid typename union unsigned using virtual void volatile while main half"""
_C = frozenset(_KEYWORDS.split())


def safe_names(names: Iterable[str]) -> dict[str, str]:
    """For each name one that isl, LLVM and C accept as an identifier; different ones stay different."""
    wanted = sorted(set(names))
    out = {n: n for n in wanted if not _odd(n)}
    taken = set(wanted)
    for n in wanted:
        if n in out:
            continue
        new = (f"u{n}" if n.startswith("_") else n) + "_"
        while new in taken:
            new += "_"
        taken.add(new)
        out[n] = new
    return out


def _odd(name: str) -> bool:
    return name.lower() in _ISL or name in _C or name in DTYPES or name.startswith("_")


def names_of(op: s.OpDef) -> frozenset[str]:
    """Every name that occurs in `op`, whatever it means."""
    found = {p.name for p in op.params} | {o.name for o in op.outputs}
    for e in s.walk(*s.expressions(op)):
        if isinstance(e, s.Name | s.Access | s.Call | s.Reduction):
            found.add(e.name)
    for statement in op.body:
        found |= set(statement.names) if isinstance(statement, s.Multi) else {statement.name}
    return frozenset(found)


def fresh(base: str, taken: set[str]) -> str:
    """`base`, or `base_2`, ..., not in `taken`; it is taken then."""
    name, n = base, 1
    while name in taken or _odd(name):
        n += 1
        name = f"{base}_{n}"
    taken.add(name)
    return name


def counted(n: int, one: str, many: str) -> str:
    """`1 dimension`, `2 dimensions`."""
    return f"{n} {one if n == 1 else many}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean ...?`, or nothing."""
    close = get_close_matches(name, sorted(set(known)), 1, 0.6)
    return f"; did you mean `{close[0]}`?" if close else ""
