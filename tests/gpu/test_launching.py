"""What a Launch says about grids."""

from __future__ import annotations

import json
from typing import Any

import pytest

from polyop.ir.codec import decode, encode
from polyop.ir.errors import InternalError, UnsupportedError
from polyop.ir.expr import affine
from polyop.ir.module import Blocks, Launch
from polyop.runtime import launching


def launch(**changes: Any) -> Launch:
    return Launch("k", (affine("N"), affine(3)), **{"block": 128, "args": ("N",), "writes": (), **changes})


def grid(made: Launch, env: dict[str, int], processors: Any, family: str = "cuda") -> int:
    return launching.grid(made, env, processors, family)


def nobody() -> int:
    raise AssertionError("the number of multiprocessors matters to blocks that stay")


def test_the_grid_holds_a_thread_for_each_point() -> None:
    assert [grid(launch(), {"N": n}, nobody) for n in (-1, 0, 1, 42, 43)] == [0, 0, 1, 1, 2]


def test_a_block_may_take_one_point_with_all_its_threads() -> None:
    assert [grid(launch(points=1), {"N": n}, nobody) for n in (0, 1, 43)] == [0, 3, 129]


def test_a_block_may_take_several_points() -> None:
    assert [grid(launch(points=4), {"N": n}, nobody) for n in (1, 4, 5)] == [1, 3, 4]


def test_blocks_that_stay_are_as_many_as_the_device_has_multiprocessors_and_no_more_than_there_are_points() -> None:
    assert [grid(launch(points=1, persistent=True), {"N": n}, lambda: 10) for n in (0, 1, 3, 4, 43)] == [0, 3, 9, 10, 10]


def test_parts_of_a_launch_have_blocks_of_their_own() -> None:
    made = launch(more=(Blocks((affine("M"),), 1), Blocks((affine("M") - 2,))))
    assert [grid(made, {"N": n, "M": m}, nobody) for n, m in ((43, 200), (0, 1), (1, 131))] == [2 + 200 + 2, 1, 1 + 131 + 2]


def test_more_blocks_than_a_grid_holds_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="a grid has at most 2147483647"):
        grid(launch(points=1), {"N": 2**31}, nobody)


def test_hip_counts_the_threads_of_a_grid_in_32_bits() -> None:
    assert grid(launch(points=3, block=256), {"N": 2**24 - 1}, nobody, "hip") == 2**24 - 1
    with pytest.raises(UnsupportedError, match="would need 16777216 blocks; a grid has at most 16777215"):
        grid(launch(points=3, block=256), {"N": 2**24}, nobody, "hip")
    assert grid(launch(points=3, block=256), {"N": 2**24}, nobody) == 2**24


@pytest.mark.parametrize("wrong", [{"block": 0}, {"shared": -1}, {"points": 0}, {"more": (Blocks((), 0),)}])
def test_a_launch_that_means_nothing_cannot_be_made(wrong: dict[str, Any]) -> None:
    with pytest.raises(InternalError, match="launch of k"):
        launch(**wrong)


def test_a_launch_survives_json() -> None:
    for value in (launch(), launch(shared=100 << 10, points=1), launch(more=(Blocks((affine("M"),), 1),))):
        assert decode(Launch, json.loads(json.dumps(encode(value)))) == value
