"""Tests marked `slow` run only when a mark is asked for: `pytest -m slow tests/library`, or `-m "slow or not slow"` for all."""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: left out unless -m asks for it")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.markexpr:
        return
    left_out = [i for i in items if i.get_closest_marker("slow")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [i for i in items if i not in set(left_out)]
