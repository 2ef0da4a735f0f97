"""Compiling keeps the collector of cycles from going through everything, and leaves its thresholds as they were."""

import gc
from contextlib import nullcontext

import pytest

import polyop
from polyop import compiler
from polyop.runtime.collector import old_objects_spared


@pytest.fixture
def whole_collections():
    """Collections of all objects since the start; thresholds are low, and what was there before is out of sight."""
    before, found = gc.get_threshold(), []

    def note(phase, info):
        if (phase, info["generation"]) == ("start", 2):
            found.append(info)

    gc.freeze()
    gc.collect()
    gc.callbacks.append(note)
    gc.set_threshold(100, 2, 2)
    yield found
    gc.callbacks.remove(note)
    gc.set_threshold(*before)
    gc.unfreeze()


@pytest.mark.parametrize("spares", [True, False])
def test_nothing_goes_through_all_objects_while_an_operator_is_compiled(whole_collections, monkeypatch, spares):
    seen = []
    for name in ("check", "_emit"):
        stage = getattr(compiler, name)
        monkeypatch.setattr(compiler, name, lambda *a, stage=stage: (seen.append(len(whole_collections)), stage(*a))[1])
    if not spares:
        monkeypatch.setattr(compiler, "old_objects_spared", nullcontext)
    polyop.op("op spared(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[k, n] }").compile()
    first, last = seen
    assert (first == last) is spares
    assert gc.get_threshold() == (100, 2, 2)


def test_thresholds_are_put_back_after_an_error_and_inside_each_other(whole_collections):
    with pytest.raises(ValueError, match="enough"), old_objects_spared(), old_objects_spared():
        assert gc.get_threshold()[2] > 1000
        raise ValueError("enough")
    assert gc.get_threshold() == (100, 2, 2)


@pytest.mark.parametrize(("usual", "inside"), [(700, 20_000), (50_000, 50_000), (0, 0)])
def test_young_objects_are_looked_through_as_seldom_as_elsewhere_at_least(whole_collections, usual, inside):
    gc.set_threshold(usual, 10, 10)
    with old_objects_spared():
        assert gc.get_threshold()[:2] == (inside, 10)
    assert gc.get_threshold() == (usual, 10, 10)


def test_what_somebody_sets_meanwhile_stays(whole_collections):
    with old_objects_spared():
        gc.set_threshold(200, 3, 4)
    assert gc.get_threshold() == (200, 3, 4)
