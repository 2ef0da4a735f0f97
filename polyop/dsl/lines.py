"""Text -> tokens: line ends settled, brackets matched, sizes limited, before the parser sees anything."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lark import Token

from polyop.ir.span import Source, Span

MAX_DEPTH = 100
MAX_TOKENS = 10_000
MAX_LETTERS = 200

_OPEN = {"LPAR": "RPAR", "LSQB": "RSQB", "LBRACE": "RBRACE"}
_CLOSE = {v: k for k, v in _OPEN.items()}
_INFIX = {"PLUS", "MINUS", "STAR", "SLASH", "PERCENT", "LESS", "MORE", "LE", "GE", "EQ", "NE", "SHIFT_OP", "BAR", "CARET", "AMP",
          "AND", "OR", "QMARK", "COLON", "COMMA", "ELSE", "IN", "WHERE", "EQUAL", "REDUCE"}
_GOES_ON_AFTER = _INFIX | {"NOT", "TILDE", "LBRACE"}     # a line that ends with one of these is not finished
_GOES_ON_BEFORE = _INFIX | {"RBRACE"}                     # no statement starts with one of these
_DEFINES = {"OP", "FN", "MONOID"}
_BREAKS = dict.fromkeys(map(ord, "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"), " ")


def normal(source: Source) -> Source:
    """`source` without a byte-order mark, with every line end a newline, and no other character that ends a line."""
    text = source.text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").translate(_BREAKS)
    return Source(source.name, text)


def span_of(source: Source, token: Token) -> Span:
    line, column = token.line or 1, token.column or 1
    return Span(source, line, column, token.end_line or line, token.end_column or column + 1)


class ShapeError(Exception):
    """Brackets that do not match, or too much of something: a code, what is wrong, and the token to blame."""

    def __init__(self, code: str, message: str, token: Token) -> None:
        super().__init__(message)
        self.code, self.message, self.token = code, message, token


def checked(tokens: Iterable[Token]) -> Iterator[Token]:
    """The same tokens; refuse brackets that do not match or nest too deep, and operators that are too long.

    Raises  ShapeError E102 (never closed), E103 (closes nothing), E104 (too deep), E105 (too long), E106 (a name too long).
    """
    stack: list[Token] = []
    count, previous = 0, "NEWLINE"
    for token in tokens:
        if token.type in _DEFINES and not stack:
            count = 0
        count += token.type != "NEWLINE"
        if count > MAX_TOKENS:
            raise ShapeError("E105", f"an operator has at most {MAX_TOKENS:,} tokens, and this one goes on", token)
        if token.type == "NAME" and len(token) > MAX_LETTERS:
            raise ShapeError("E106", f"a name has at most {MAX_LETTERS} letters", token)
        if token.type in _OPEN:
            stack.append(token)
            if len(stack) > MAX_DEPTH:
                raise ShapeError("E104", f"brackets nest at most {MAX_DEPTH} deep", token)
        elif token.type in _CLOSE:
            if all(open_.type != _CLOSE[token.type] for open_ in stack):
                raise ShapeError("E103", f"`{token}` closes nothing", token)
            if stack[-1].type != _CLOSE[token.type]:
                raise ShapeError("E102", f"`{stack[-1]}` is never closed", stack[-1])
            stack.pop()
        elif token.type in _DEFINES and stack and previous == "NEWLINE":
            raise ShapeError("E102", f"`{stack[-1]}` is never closed", stack[-1])
        previous = token.type
        yield token
    if stack:
        raise ShapeError("E102", f"`{stack[-1]}` is never closed", stack[-1])


class Lines:
    """Turns line ends into _SEP, in operator bodies only; `;` in a body separates too."""

    always_accept = ("NEWLINE",)

    def process(self, stream: Iterator[Token]) -> Iterator[Token]:
        """Raises ShapeError for a text that no parser needs to see."""
        tokens = list(checked(stream))
        depth, body, previous = 0, False, ""
        pending: Token | None = None
        for token in tokens:
            if token.type in ("NEWLINE", "SEMICOLON") and body and depth == 0:
                if token.type == "SEMICOLON" or previous not in _GOES_ON_AFTER:
                    pending = pending or token
                continue
            if token.type == "NEWLINE":
                continue
            if pending is not None and token.type not in _GOES_ON_BEFORE and previous != "LBRACE":
                yield Token.new_borrow_pos("_SEP", "\n", pending)
            pending = None
            if token.type in ("LPAR", "LSQB"):
                depth += 1
            elif token.type in ("RPAR", "RSQB"):
                depth -= 1
            elif token.type in ("LBRACE", "RBRACE"):
                body, depth = token.type == "LBRACE", 0
            previous = token.type
            yield token
