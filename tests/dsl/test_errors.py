"""Every report in full: `errors.txt` holds programs and what they get. A case ends at a line of `=`."""

import pathlib
import re

import pytest
from helpers import CODE

from polyop.dsl.check import instantiate, warnings
from polyop.dsl.parse import parse
from polyop.ir.errors import UserError
from polyop.ir.span import Source

CODE_IN_SOURCE = re.compile(r'"([EW][1-4]\d\d)"')
CASES = [
    case.strip("\n").split("\n----\n") for case in (pathlib.Path(__file__).parent / "errors.txt").read_text().split("\n====\n")
]
CASES = [c for c in CASES if len(c) == 2]


def report(text):
    """What the operator f of `text` gets: an error's report, or its warnings."""
    try:
        program = parse(Source("t.pop", text))
        instantiate(program, "f")
    except UserError as error:
        return str(error)
    return "\n".join(map(str, warnings(program, "f")))


@pytest.mark.parametrize("case", CASES, ids=[f"{CODE.search(c[1]).group(1)}-{n}" for n, c in enumerate(CASES)])
def test_a_wrong_program_gets_its_report(case):
    text, expected = case
    assert report(text) == expected


def test_every_code_of_this_room_has_a_case():
    room = pathlib.Path(__file__).parents[2] / "polyop" / "dsl"
    said = {code for path in room.glob("*.py") for code in CODE_IN_SOURCE.findall(path.read_text())}
    elsewhere = {"E101", "E104", "E105", "E106", "E150", "E151", "E226"}  # in test_hostile, test_einsum, test_interface
    assert said - elsewhere == {CODE.search(c[1]).group(1) for c in CASES}


def test_a_good_program_gets_no_warning():
    assert report("op f(X: f32[M, N], b: f32[M]) -> (Y: f32[M]) {\n Y[m] += X[m, n] + X[m, n]\n Y[m] += b[m]\n}") == ""
