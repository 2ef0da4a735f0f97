"""The GPU tests keep what they compile for as long as they run, apart from the user's own cache."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POLYOP_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield
