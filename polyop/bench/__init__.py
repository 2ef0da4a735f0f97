"""What `polyop bench` does: operators beside everybody else who is installed, and beside what the machine can do."""

from polyop.bench.book import OURS, Book, Row, from_json, to_json
from polyop.bench.case import Case
from polyop.bench.groups import GROUPS, cases
from polyop.bench.measure import Settings, bind, book, measured, results, settings
from polyop.bench.page import HEAD, cells, fill, limits, markdown, place, summary, table
from polyop.bench.page_turns import others, turn_cells, turn_head, turn_markdown, turn_summary
from polyop.bench.peers import PEERS, chosen
from polyop.bench.picture import needs_matplotlib, roofline
from polyop.bench.turns import Turns, turned

__all__ = [
    "GROUPS", "HEAD", "OURS", "PEERS", "Book", "Case", "Row", "Settings", "Turns", "bind", "book", "cases", "cells", "chosen",
    "fill", "from_json", "limits", "markdown", "measured", "needs_matplotlib", "others", "place", "results",
    "roofline", "settings", "summary", "table", "to_json", "turn_cells", "turn_head", "turn_markdown", "turn_summary", "turned",
]
