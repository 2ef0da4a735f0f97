"""The demo: every subject runs, at five sizes at least, and a wrong result would be seen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from polyop.demo import SUBJECTS, results
from polyop.runtime import store, threads


@pytest.fixture(autouse=True)
def nothing_compiled(monkeypatch):
    monkeypatch.setattr(store, "kernels", store.Memo())


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda s: s.title)
def test_each_subject_is_compiled_once_proved_and_right(subject):
    small = {"I": 24, "O": 40, "D": 48, "S": 11, "C": 8, "V": 100, "G": 192, "B": 17, "K": 20, "M": 30, "N": 30, "H": 48, "L": 3}
    sizes = tuple({n: min(v, small.get(n, v)) for n, v in s.items()} for s in subject.sizes[:2])
    (result,) = results(peer=False, subjects=(replace(subject, sizes=sizes),))
    assert result.kernels == 1 and result.proved
    assert all(r.right for r in result.runs)


def test_every_subject_has_five_different_sizes():
    assert len(SUBJECTS) >= 10
    for subject in SUBJECTS:
        assert len({tuple(s.items()) for s in subject.sizes}) >= 5


def test_a_wrong_result_is_seen():
    subject = next(s for s in SUBJECTS if s.title == "softmax")
    wrong = replace(subject, numpy=lambda X: np.exp(X) / np.exp(X).sum(-1, keepdims=True) + 1e-3, sizes=({"H": 1, "S": 7},))
    (result,) = results(peer=False, subjects=(wrong,))
    assert not result.runs[0].right


def test_the_demo_leaves_threads_and_cache_folder_as_they_were(monkeypatch, tmp_path):
    monkeypatch.setenv("POLYOP_CACHE_DIR", str(tmp_path))
    count = threads.get_num_threads()
    list(results(peer=False, subjects=(replace(SUBJECTS[-1], sizes=({"B": 1, "S": 2, "V": 9},)),)))
    assert threads.get_num_threads() == count
    assert list(tmp_path.iterdir()) == []
