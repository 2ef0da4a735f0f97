"""How the tests are shared among processes: `pytest -n auto` gives each a run of neighbours, which compile the same things.

And what several files ask for.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest

from polyop import cli


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Each process begins with a part of all tests, in order, and who is done takes half of what another has left.

    By default tests are dealt out one by one, and each process compiles what the tests of a file share.
    """
    if config.getoption("dist") != "load":
        return None
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log)


def pytest_collection_finish() -> None:
    """What was collected stays to the end: the collector of cycles need not look at it again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def bench(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """`polyop bench` with arguments: its exit status, and what it printed."""
    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exited:
            cli.main(["bench", *arguments])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.out + captured.err
        return int(exited.value.code or 0), captured.out, captured.err
    return run
