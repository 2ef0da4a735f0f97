"""lark's parse tree -> the frozen syntax tree."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from lark import Token, Tree
from lark.visitors import Transformer_NonRecursive

from polyop.dsl import syntax as s
from polyop.dsl.lines import span_of
from polyop.ir.errors import fail
from polyop.ir.span import Source, Span

MAX_DIGITS = 40


class Builder(Transformer_NonRecursive):  # type: ignore[type-arg]
    """One method for each rule of the grammar; non-recursive, so depth is no matter."""

    def __init__(self, source: Source) -> None:
        super().__init__(visit_tokens=False)
        self.source = source

    def _call_userfunc(self, tree: Tree[Any], new_children: list[Any] | None = None) -> Any:
        method: Callable[[list[Any], Span], Any] | None = getattr(self, f"on_{tree.data}", None)
        c = list(new_children or [])
        meta = tree.meta
        if meta.empty:
            span = Span(self.source, 1, 1, 1, 1)
        else:
            span = Span(self.source, meta.line, meta.column, meta.end_line, meta.end_column)
        return method(c, span) if method else c

    # expressions

    def on_number(self, c: list[Any], span: Span) -> s.Syntax:
        text = str(c[0]).replace("_", "")
        if len(text) > MAX_DIGITS:
            raise fail("E106", f"a number has at most {MAX_DIGITS} digits", span)
        if text[:2] in ("0x", "0X", "0b", "0B"):
            return s.Number(int(text, 0), span)
        return s.Number(float(text) if any(x in text for x in ".eE") else int(text), span)

    def on_boolean(self, c: list[Any], span: Span) -> s.Syntax:
        return s.Number(c[0] == "true", span)

    def on_name(self, c: list[Any], span: Span) -> s.Syntax:
        return s.Name(str(c[0]), span)

    def on_rest(self, c: list[Any], span: Span) -> s.Syntax:
        return s.Rest(span)

    def on_access(self, c: list[Any], span: Span) -> s.Syntax:
        return s.Access(str(c[0]), _dims(c[1]), span)

    def on_call(self, c: list[Any], span: Span) -> s.Syntax:
        given = c[1] or []
        plain = [x for x in given if not isinstance(x, tuple)]
        named = tuple(x for x in given if isinstance(x, tuple))
        for first, second in itertools.pairwise(given):
            if isinstance(first, tuple) and not isinstance(second, tuple):
                raise fail("E107", "an argument without a name follows one with a name", second.span)
        return s.Call(str(c[0]), tuple(plain), named, span)

    def on_keyword(self, c: list[Any], span: Span) -> tuple[str, s.Syntax]:
        return str(c[0]), c[1]

    def on_reduction(self, c: list[Any], span: Span) -> s.Syntax:
        return s.Reduction(str(c[0]), _dims(c[1]), c[2], span)

    def on_binary(self, c: list[Any], span: Span) -> s.Syntax:
        return s.Binary(str(c[1]), c[0], c[2], span)

    def on_unary(self, c: list[Any], span: Span) -> s.Syntax:
        value = c[1]
        if c[0] == "-" and isinstance(value, s.Number) and not isinstance(value.value, bool):
            return s.Number(-value.value, span)
        return s.Unary(str(c[0]), value, span)

    def on_compare(self, c: list[Any], span: Span) -> s.Syntax:
        return s.Compare(tuple(map(str, c[1::2])), tuple(c[0::2]), span)

    def on_inside(self, c: list[Any], span: Span) -> s.Syntax:
        return s.Inside(c[0], c[1], c[2], span)

    def on_choice(self, c: list[Any], span: Span) -> s.Syntax:
        return s.Choice(c[0], c[1], c[2], span)

    def on_otherwise(self, c: list[Any], span: Span) -> s.Syntax:
        return s.Else(c[0], c[2], span)

    # statements

    def on_left_scalar(self, c: list[Any], span: Span) -> tuple[Any, ...]:
        return str(c[0]), None, None, None, span

    def on_left_indexed(self, c: list[Any], span: Span) -> tuple[Any, ...]:
        return str(c[0]), None, None, _dims(c[1]), span

    def on_left_typed_scalar(self, c: list[Any], span: Span) -> tuple[Any, ...]:
        return str(c[0]), str(c[1]), None, None, span

    def on_left_typed(self, c: list[Any], span: Span) -> tuple[Any, ...]:
        return str(c[0]), str(c[1]), None, _dims(c[2]), span

    def on_left_shaped(self, c: list[Any], span: Span) -> tuple[Any, ...]:
        return str(c[0]), str(c[1]), _dims(c[2]), _dims(c[3]), span

    def on_assign_plain(self, c: list[Any], span: Span) -> str:
        return ""

    def on_assign_reduce(self, c: list[Any], span: Span) -> str:
        return str(c[0]).removesuffix("=")

    def on_assignment(self, c: list[Any], span: Span) -> s.Statement:
        (name, dtype, shape, index, left), reduce, value, where = c
        return s.Assignment(name, dtype, shape, index, reduce, value, tuple(where or ()), left, span)

    def on_declaration(self, c: list[Any], span: Span) -> s.Statement:
        return s.Declaration(str(c[0]), str(c[1]), _dims(c[2]), span)

    def on_multi(self, c: list[Any], span: Span) -> s.Statement:
        return s.Multi(tuple(map(str, c[:-1])), c[-1], span)

    def on_body(self, c: list[Any], span: Span) -> list[Any]:
        return c

    # definitions

    def on_facts(self, c: list[Any], span: Span) -> list[Any]:
        return list(c[0])

    def on_type(self, c: list[Any], span: Span) -> s.Type:
        return s.Type(str(c[0]), _dims(c[1]), span, span.end_line > span.line or span.text.endswith("]"))

    def on_mode(self, c: list[Any], span: Span) -> str:
        return str(c[0])

    def on_param(self, c: list[Any], span: Span) -> s.Parameter:
        mode, name, type_, default = c
        token: Token = name
        return s.Parameter(mode or "", str(name), type_, default, False, comment_above(self.source, token), span)

    def on_group(self, c: list[Any], span: Span) -> list[s.Parameter]:
        return [p for p in c if p is not None]

    def on_params(self, c: list[Any], span: Span) -> list[s.Parameter]:
        by_name = [s.Parameter(p.mode, p.name, p.type, p.default, True, p.doc, p.span) for p in c[1] or ()]
        return [*c[0], *by_name]

    def on_output(self, c: list[Any], span: Span) -> s.Output:
        return s.Output(str(c[0]), c[1], comment_above(self.source, c[0]), span)

    def on_generic(self, c: list[Any], span: Span) -> s.Generic:
        return s.Generic(str(c[0]), tuple(map(str, c[1:])), span)

    def on_op(self, c: list[Any], span: Span) -> s.OpDef:
        name, generics, params, outputs, facts, body = c
        return s.OpDef(str(name), tuple(generics or ()), tuple(params or ()), tuple(outputs or ()), tuple(facts or ()),
                       tuple(body or ()), comment_above(self.source, name), span_of(self.source, name))

    def on_fn(self, c: list[Any], span: Span) -> s.FnDef:
        return s.FnDef(str(c[0]), tuple(map(str, c[1] or ())), c[2], span)

    def on_monoid(self, c: list[Any], span: Span) -> s.MonoidDef:
        return s.MonoidDef(str(c[0]), c[1], str(c[2]), span)

    def on_start(self, c: list[Any], span: Span) -> list[Any]:
        return c


def _dims(given: list[Any] | None) -> tuple[s.Syntax, ...]:
    return tuple(given or ())


def comment_above(source: Source, token: Token) -> str:
    """The comment lines directly above the line on which `token` stands first, without their `#`."""
    row = token.line or 1
    before = source.line(row)[: (token.column or 1) - 1].split()
    if any(word not in ("op", "const", "inout") for word in before):
        return ""
    lines: list[str] = []
    while row > 1 and source.line(row - 1).strip().startswith("#"):
        row -= 1
        lines.append(source.line(row).strip().lstrip("#").strip())
    return "\n".join(reversed(lines)).strip()
