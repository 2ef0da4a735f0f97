"""What a syntax error most likely means: one line for each foreign spelling, with the right one."""

from __future__ import annotations

from lark import Token
from lark.exceptions import UnexpectedCharacters, UnexpectedToken

from polyop.dsl.lines import span_of
from polyop.ir.errors import UserError, fail
from polyop.ir.span import Source, Span

_CHARACTERS = {
    "!": "not is spelled `not`, unequal `!=`",
    "$": "names hold letters, digits and `_`",
    "@": "a product is written out: `C[m, n] += A[m, k] * B[k, n]`",
    "'": "there are no strings here",
    '"': "there are no strings here",
    "\\": "a line goes on by itself inside brackets and after an operator",
    "×": "multiply with `*`", "·": "multiply with `*`", "÷": "divide with `/`", "−": "the minus sign is `-`",
    "≤": "at most is `<=`", "≥": "at least is `>=`", "≠": "unequal is `!=`", "∑": "a sum is `+=`, or `sum[k](...)`",
    ".": "functions stand alone, such as `exp(x)`; there are no methods", "²": "a square is written out: `x * x`",
    "π": "the constant is `pi`", "∞": "the constant is `inf`",
}

_TWICE = {
    "*": ("`**` is no operator", "a power is `pow(x, y)`"),
    "&": ("`&&` is no operator", "both hold is `a and b`"),
    "|": ("`||` is no operator", "one holds is `a or b`"),
    "/": ("`//` is no operator", "integer `/` floors already; a comment starts with `#`"),
    "=": ("`===` is no operator", "equal is `==`"),
}

_WORDS = {
    "NAME": "a name", "NUMBER": "a number", "LPAR": "`(`", "RPAR": "`)`", "LSQB": "`[`", "RSQB": "`]`", "LBRACE": "`{`",
    "RBRACE": "`}`", "COMMA": "`,`", "COLON": "`:`", "EQUAL": "`=`", "REDUCE": "`+=`", "_SEP": "a new line", "$END": "the end",
    "OP": "`op`", "FN": "`fn`", "MONOID": "`monoid`", "WHERE": "`where`", "ELLIPSIS": "`...`", "SEMICOLON": "`;`",
    "LESS": "`<`", "MORE": "`>`", "BAR": "`|`", "AND": "`and`", "OR": "`or`", "CONST": "`const`", "INOUT": "`inout`",
    "QMARK": "`?`", "ELSE": "`else`", "IN": "`in`", "__ANON_0": "`->`",
}
_KEYWORDS = {"OP", "FN", "MONOID", "WHERE", "ELSE", "IN", "AND", "OR", "NOT", "TRUE", "FALSE", "CONST", "INOUT"}
_STATEMENTS = {"for", "if", "while", "let", "return", "def", "var", "float", "int", "double"}


def explain_character(source: Source, error: UnexpectedCharacters) -> UserError:
    """E101: a character that no word of the language has."""
    char = source.text[error.pos_in_stream or 0]
    span = Span(source, error.line, error.column, error.line, error.column + 1)
    shown = f"`{char}`" if char.isprintable() and not char.isspace() else f"U+{ord(char):04X}"
    return fail("E101", f"{shown} is no part of the language", span, hint=_CHARACTERS.get(char, ""))


def explain_token(source: Source, error: UnexpectedToken) -> UserError:
    """E1xx: a word where it cannot stand."""
    token: Token = error.token
    start = token.start_pos or 0
    before = source.text[:start] if token.type != "$END" else source.text
    touching, word = before[-1:], str(token)
    previous = before.rstrip()[-1:]
    if token.type == "$END":
        last = max(1, source.text.rstrip().count("\n") + 1)
        column = max(1, len(source.line(last).rstrip()))
        return fail(
            "E110",
            "the text ends too early",
            Span(source, last, column, last, column + 1),
            f"expected {_expected(error, source.text)}",
        )
    span = span_of(source, token)
    wide = Span(source, span.line, max(1, span.column - 1), span.end_line, span.end_column)
    if word in ("*", "&", "|", "/", "=") and touching == word:
        message, hint = _TWICE[word]
        return fail("E111", message, wide, hint=hint)
    if token.type == "NAME" and (touching.isdigit() or touching == "."):
        return _product(source, token, span)
    if token.type == "NUMBER" and (touching.isdigit() or touching == "."):
        return fail("E112", "a number ends here, and another follows", span)
    if token.type in ("EQUAL", "REDUCE"):
        hint = "equal is `==`" if token.type == "EQUAL" else ""
        return fail("E113", f"`{word}` stands only between a tensor and its value", span, hint=hint)
    if token.type == "ELSE":
        return fail(
            "E114",
            "`else` follows exactly one read",
            span,
            hint="put the read and its `else` in parentheses: `(X[i - 1] else 0)`",
        )
    if token.type == "LSQB" and previous == "]":
        return fail("E115", "all indices stand in one pair of brackets", span, hint="write `A[m, k]` for `A[m][k]`")
    if previous == ">" and before.rstrip().endswith("->"):
        return fail("E116", "outputs stand in parentheses", span, hint="write `-> (C: f32[M, N])`")
    if token.type in _KEYWORDS and "NAME" in error.expected:
        return fail(
            "E117",
            f"`{word}` is a word of the language and cannot be a name here",
            span,
            f"expected {_expected(error, source.text)}",
        )
    line = source.line(span.line).split()
    if line and line[0] in _STATEMENTS and not line[0].endswith("="):
        first = source.line(span.line).index(line[0]) + 1
        at = Span(source, span.line, first, span.line, first + len(line[0]))
        return fail("E118", f"there is no `{line[0]}` statement", at,
                    hint="indices run by themselves; a condition is `where ...` or `c ? a : b`")
    if token.type == "_SEP":
        return fail("E119", "the line ends too early", span, f"expected {_expected(error, source.text)}")
    hint = ""
    if word in ("if", "then"):
        hint = "a choice is `c ? a : b`"
    elif word == ":" and _innermost(before) == "`]`":
        hint = "each position is named, `A[i, k]`; a part of a range is `where i in 0:5`"
    return fail("E120", f"expected {_expected(error, source.text)}, got `{word[:40]}`", span, hint=hint)


def _product(source: Source, token: Token, span: Span) -> UserError:
    line = source.line(span.line)
    start = span.column - 1
    while start > 0 and (line[start - 1].isalnum() or line[start - 1] in "._"):
        start -= 1
    number = line[start : span.column - 1]
    at = Span(source, span.line, start + 1, span.line, span.end_column)
    return fail("E112", f"`{number}{token}` is no number", at, hint=f"a product is `{number}*{token}`")


def _innermost(text: str) -> str:
    """What closes the bracket that is open at the end of `text`."""
    stack: list[str] = []
    for line in text.splitlines():
        for c in line.partition("#")[0]:
            if c in "([":
                stack.append("`)`" if c == "(" else "`]`")
            elif c in ")]" and stack:
                stack.pop()
    return stack[-1] if stack else "the end of the line"


def _expected(error: UnexpectedToken, text: str) -> str:
    """What could stand in place of the wrong word; `text` is the whole text."""
    kinds = set(error.expected)
    token: Token = error.token
    inside = _innermost(text[: token.start_pos])
    if {"NUMBER", "NAME", "LPAR"} <= kinds:
        return "an expression"
    if {"PLUS", "STAR"} <= kinds:
        return f"an operator or {inside}"
    words = sorted(_WORDS.get(k, f"`{k.lower()}`") for k in kinds)
    return " or ".join(words[:6]) if words else "nothing more"
