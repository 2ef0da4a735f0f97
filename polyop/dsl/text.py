"""Syntax -> text, for hints."""

from __future__ import annotations

from polyop.dsl import syntax as s
from polyop.ir.errors import assert_never

_LOOSE = {"or": 1, "and": 2, "|": 4, "^": 5, "&": 6, "<<": 7, ">>": 7, "+": 8, "-": 8, "*": 9, "/": 9, "%": 9}


def unparse(e: s.Syntax) -> str:
    """`e` as a user would write it."""
    return _text(e, 0)


def _text(e: s.Syntax, outer: int) -> str:
    match e:
        case s.Number(value=x):
            return str(x).lower() if isinstance(x, bool) else str(x)
        case s.Name(name=n):
            return n
        case s.Rest():
            return "..."
        case s.Access(name=n, index=index):
            return f"{n}[{', '.join(_text(i, 0) for i in index)}]"
        case s.Call(name=n, args=args, keywords=named):
            return f"{n}({', '.join([*(_text(a, 0) for a in args), *(f'{k}={_text(x, 0)}' for k, x in named)])})"
        case s.Reduction(name=n, index=index, body=body):
            return f"{n}[{', '.join(_text(i, 0) for i in index)}]({_text(body, 0)})"
        case s.Binary(sign=sign):
            first, links = s.spine(e)
            text, level = _text(first, _LOOSE[links[0].sign]), _LOOSE[links[0].sign]
            for link in links:
                if _LOOSE[link.sign] > level:
                    text = f"({text})"
                level = _LOOSE[link.sign]
                text += f" {link.sign} {_text(link.right, level + 1)}"
            return f"({text})" if level < outer else text
        case s.Unary(sign=sign, value=x):
            return f"{sign}{' ' if sign == 'not' else ''}{_text(x, 10)}"
        case s.Compare(signs=signs, values=values):
            parts = [_text(values[0], 4)]
            for sign, x in zip(signs, values[1:], strict=True):
                parts += [sign, _text(x, 4)]
            return f"({' '.join(parts)})" if outer > 3 else " ".join(parts)
        case s.Inside(value=x, lower=a, upper=b):
            return f"{_text(x, 4)} in {_text(a, 4)}:{_text(b, 4)}"
        case s.Choice(condition=c, yes=a, no=b):
            text = f"{_text(c, 1)} ? {_text(a, 1)} : {_text(b, 0)}"
            return f"({text})" if outer else text
        case s.Else(read=a, other=b):
            return f"({_text(a, 0)} else {_text(b, 0)})"
    assert_never(e)
