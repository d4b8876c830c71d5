"""Laws of the budget: never more than is free, and a loaded model stays within it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edge_spec.engines.registry import engine
from edge_spec.errors import BudgetExceeded, OutOfMemory, SettingsError
from edge_spec.loading import load, plan
from edge_spec.memory import (
    Device,
    Usage,
    usage,
)
from edge_spec.memory.budget import Budget, budget_of
from edge_spec.memory.pressure import system_watch

MIB = 1 << 20


HELD = 60 * MIB


def device(total: int, available: int) -> Callable[[], Device]:
    return lambda: Device(total_bytes=total, available_bytes=available, n_physical_cores=2, n_logical_cores=2)


def reading(resident: int = HELD) -> Callable[[], Usage]:
    return lambda: Usage(resident_bytes=resident, unique_bytes=resident, anonymous_bytes=resident)


def test_the_default_budget_is_a_share_of_what_is_available() -> None:
    found = budget_of(None, device=device(1000 * MIB, 500 * MIB), reading=reading())
    assert (found.budget_bytes, found.held_bytes, found.notes) == (HELD + 400 * MIB, HELD, ())
    assert found.limit_bytes is None


def test_a_budget_is_never_more_than_is_free() -> None:
    small = device(1000 * MIB, 200 * MIB)
    named = budget_of(150 * MIB, device=small, reading=reading())
    assert named.budget_bytes == named.limit_bytes == 150 * MIB
    found = budget_of(600 * MIB, device=small, reading=reading())
    assert found.budget_bytes == HELD + 200 * MIB
    assert "260 MiB" in found.notes[0]
    with pytest.raises(OutOfMemory, match="2,000 MiB") as caught:
        budget_of(2000 * MIB, device=small, reading=reading())
    assert caught.value.needed_bytes == 2000 * MIB


@pytest.fixture
def loaded(probe_cache: Path) -> Iterator[Callable[..., Any]]:
    models: list[Any] = []

    def open_it(**asked: Any) -> Any:
        models.append(load("demo", n_threads=1, cache_dir=probe_cache, **asked))
        return models[-1]

    yield open_it
    for model in models:
        model.close()


def test_a_loaded_model_holds_what_was_planned_and_no_more(loaded: Callable[..., Any]) -> None:
    room = usage().resident_bytes + 400 * MIB
    model = loaded(memory=room, speculation="hierarchy")
    model.generate("Tell me a story.", seed=1, max_tokens=12).read()
    ledger = model.ledger
    ledger.check_integrity()
    assert ledger.budget_bytes == room
    assert {line.owner for line in ledger} == {"process", "target", "draft", "intermediate"}
    with pytest.raises(BudgetExceeded) as caught:
        ledger.claim("chat", "session saves", room)
    assert caught.value.allowed_bytes == ledger.left_bytes < room
    ledger.claim("chat", "session saves", MIB)
    assert ledger.release("chat") == MIB


@pytest.mark.long
def test_a_tight_budget_drops_the_drafter_and_says_so(
    loaded: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    thresholds = plan("demo", memory="1GiB", held_bytes=HELD, engine="llama").thresholds
    # The library is loaded here, so that it counts among what is held.
    held = HELD + engine("llama").library_bytes
    tight = Budget(budget_bytes=thresholds["drafter"] - 1, held_bytes=held)
    # What this process holds changes from test to test.
    monkeypatch.setattr("edge_spec.loading.budget_of", lambda memory: tight)
    model = loaded(memory="1GiB", n_ctx=256, engine="llama", watch=system_watch())
    assert model.mode == "ngram"
    assert any("instead of 'hierarchy'" in note for note in model.notes)
    assert {line.owner for line in model.ledger} == {"process", "target"}


@pytest.mark.long
def test_nothing_is_loaded_that_does_not_fit(loaded: Callable[..., Any]) -> None:
    with pytest.raises(BudgetExceeded, match=r"minimum .* MiB"):
        loaded(memory="10MiB")
    with pytest.raises(BudgetExceeded):
        loaded(memory=usage().resident_bytes + 12 * MIB, speculation="hierarchy", n_ctx=4096)
    with pytest.raises(SettingsError):
        loaded(memory="banana")
