"""Laws of choosing among candidates: what is chosen fits the budget, and nothing better does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_spec.controller.candidates import Candidate
from edge_spec.controller.plan import choose
from edge_spec.engines.llama.settings import LlamaSettings
from edge_spec.engines.registry import engine as registry_engine
from edge_spec.engines.registry import settings_of
from edge_spec.errors import BudgetExceeded
from edge_spec.memory import (
    Footprint,
    reserve_bytes,
)
from edge_spec.speculation.modes import MODES

MIB = 1 << 20


FOOTPRINTS = st.builds(
    Footprint,
    mapped_bytes=st.integers(0, 50 * MIB),
    repacked_bytes=st.integers(0, 50 * MIB),
    kv_cache_bytes=st.integers(0, 50 * MIB),
    compute_bytes=st.integers(0, 9 * MIB),
    reading_bytes=st.integers(0, 30 * MIB),
    loading_bytes=st.integers(0, 60 * MIB),
)


CANDIDATES = st.builds(
    Candidate,
    mode=st.sampled_from(tuple(MODES.values())),
    settings=st.just(settings_of(512, {})),
    engines=st.just({"target": registry_engine("llama")}),
    models=st.just({"target": LlamaSettings(n_ctx=512, kv_k="f16")}),
    base_bytes=st.integers(0, 60 * MIB),
    parts=st.builds(
        lambda target, others: {"target": target, **others},
        FOOTPRINTS,
        st.dictionaries(st.sampled_from(["draft", "intermediate"]), FOOTPRINTS),
    ),
    tables=st.dictionaries(st.sampled_from(["table", "tokens"]), st.integers(0, 9 * MIB)),
)


@pytest.mark.long
@given(st.lists(st.lists(CANDIDATES, min_size=1, max_size=6), min_size=1, max_size=4), st.integers(1, 400 * MIB))
def test_a_plan_never_exceeds_the_budget(levels: list[list[Candidate]], budget: int) -> None:
    try:
        found = choose(levels, budget, what="model.gguf")
    except BudgetExceeded as error:
        assert all(candidate.needed_bytes > budget for level in levels for candidate in level)
        assert error.needed_bytes == min(candidate.needed_bytes for level in levels for candidate in level)
        return
    chosen = found.chosen
    assert chosen.needed_bytes == chosen.peak_bytes + reserve_bytes(chosen.peak_bytes) <= budget
    level = next(level for level in levels if any(candidate.needed_bytes <= budget for candidate in level))
    assert chosen == next(candidate for candidate in level if candidate.needed_bytes <= budget)
    for other in found.runners_up:
        assert other.needed_bytes <= budget


@given(CANDIDATES)
def test_the_peak_is_the_most_of_every_moment(candidate: Candidate) -> None:
    held = candidate.base_bytes + sum(candidate.tables.values())
    moments = [held]
    for part in candidate.parts.values():
        moments.append(held + part.weight_bytes + part.vocabulary_bytes + part.loading_bytes)
        held += sum(part.lines().values())
        moments.append(held)
    moments.append(held + max(part.reading_bytes for part in candidate.parts.values()))
    assert candidate.peak_bytes == max(moments)
    assert candidate.held_bytes == held
