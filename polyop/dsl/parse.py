"""Text -> Program."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import lark
from lark import Lark
from lark.exceptions import UnexpectedCharacters, UnexpectedToken
from lark.grammar import Rule
from lark.lexer import TerminalDef

from polyop.dsl import syntax as s
from polyop.dsl.lines import Lines, ShapeError, normal, span_of
from polyop.dsl.mistakes import explain_character, explain_token
from polyop.dsl.tree import Builder
from polyop.ir.errors import Label, fail
from polyop.ir.span import Source

MAX_NESTING = 250  # of expressions without brackets: `- - - x`, `a ? b : c ? d : e`


_loader: Any = Lark._load_from_dict  # `load` does the same, but unpickles, and takes no postlex

Keep = Callable[[str, Callable[[], bytes]], bytes]
"""Gives the bytes that something is made of, by all that they depend on: those of another process, or new ones."""


@lru_cache(maxsize=2)
def _lark(keep: Keep | None) -> Lark:
    """The parser. Its tables take 115 ms to make out of the grammar, and 9 ms to read."""
    grammar = Path(__file__).with_name("grammar.lark").read_text(encoding="utf-8")

    def made() -> Lark:
        return Lark(grammar, parser="lalr", lexer="basic", postlex=Lines(), propagate_positions=True, maybe_placeholders=True)

    def tables() -> bytes:
        data, memo = made().memo_serialize([TerminalDef, Rule])
        data["options"]["postlex"] = None  # an object; it is given anew
        return json.dumps({"data": data, "memo": memo}).encode()

    if keep is None:
        return made()
    kept = json.loads(keep(f"lark {lark.__version__}: {grammar}", tables), object_pairs_hook=_numbered)
    loaded: Lark = _loader(**kept, postlex=Lines())
    return loaded


def _numbered(pairs: list[tuple[str, Any]]) -> dict[Any, Any]:
    """An object of JSON, whose keys are numbers again if they were."""
    return {int(k): v for k, v in pairs} if pairs and pairs[0][0].isdigit() else dict(pairs)


def parse(source: Source, keep: Keep | None = None) -> s.Program:
    """The definitions in `source`; `keep` is asked for the parser's tables, once in a process.

    Raises  UserError E1xx, if the text is not in the language.
    """
    source = normal(source)
    try:
        tree = _lark(keep).parse(source.text)
    except ShapeError as error:
        raise fail(error.code, error.message, span_of(source, error.token)) from None
    except UnexpectedCharacters as error:
        raise explain_character(source, error) from None
    except UnexpectedToken as error:
        raise explain_token(source, error) from None
    items = Builder(source).transform(tree)
    _check_names(items)
    ops = tuple(i for i in items if isinstance(i, s.OpDef))
    fns = tuple(i for i in items if isinstance(i, s.FnDef))
    monoids = tuple(i for i in items if isinstance(i, s.MonoidDef))
    roots = [*(e for o in ops for e in s.expressions(o)), *(f.body for f in fns), *(m.identity for m in monoids)]
    for root in roots:
        _check_nesting(root)
    depth = s.depth(*(e for o in ops for e in s.expressions(o))) + sum(s.depth(f.body) for f in fns)
    depth += max((len(x.where) for o in ops for x in o.body if isinstance(x, s.Assignment)), default=0)
    return s.Program(source, ops, fns, monoids, depth)


def _check_names(items: list[s.Definition]) -> None:
    seen: dict[str, s.Definition] = {}
    for item in items:
        if item.name in seen:
            first = Label(seen[item.name].span)
            raise fail("E121", f"`{item.name}` is defined twice", item.span, notes=(("the first is here", first),))
        seen[item.name] = item


def _check_nesting(root: s.Syntax) -> None:
    """A chain of binary signs counts as one level, however long."""
    stack = [(root, 0)]
    while stack:
        node, depth = stack.pop()
        if depth > MAX_NESTING:
            raise fail("E104", f"expressions nest at most {MAX_NESTING} deep", node.span)
        if isinstance(node, s.Binary):
            first, links = s.spine(node)
            stack += [(first, depth + 1), *((link.right, depth + 1) for link in links)]
        else:
            stack += [(child, depth + 1) for child in s.children(node)]
