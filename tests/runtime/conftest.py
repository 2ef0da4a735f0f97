"""Every test has a kernel cache of its own."""

import pytest

from polyop.runtime import store


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("POLYOP_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(store, "kernels", store.Memo())
    return tmp_path / "cache"
