"""Measured numbers into the README, so that nobody copies them by hand."""

from __future__ import annotations

import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def fill(block: str, lines: list[str]) -> None:
    """Put `lines` between `<!-- block -->` and the next `<!-- end -->`."""
    text = README.read_text(encoding="utf-8")
    pattern = rf"(<!-- {block} -->\n).*?(<!-- end -->)"
    new, count = re.subn(pattern, lambda m: m[1] + "\n" + "\n".join(lines) + "\n\n" + m[2], text, count=1, flags=re.S)
    if count != 1:
        raise SystemExit(f"the README has no block {block}")
    README.write_text(new, encoding="utf-8")
