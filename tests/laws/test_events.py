"""Laws of the events of a reply: they are its tokens, and tell of the model's own distribution."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from speculator_replies import reply_of

from edge_spec.errors import SettingsError
from edge_spec.sampling import SamplerSettings
from edge_spec.speculation.drafters.model import ModelDrafter
from edge_spec.speculation.drafters.plain import NoDrafter
from edge_spec.speculation.loop import Slot
from edge_spec.testing import TableModel, random_table


@pytest.mark.long
@given(st.data())
def test_events_are_the_tokens_and_the_text(cases: st.SearchStrategy[Any], data: st.DataObject) -> None:
    case = data.draw(cases)
    told = list(case.generation().events())
    plain = case.generation(drafts=False)
    text = plain.read()
    assert [event.id for event in told if event.id is not None] == plain.token_ids
    assert "".join(event.text for event in told) == text


@pytest.mark.long
@given(st.data())
def test_rounds_and_drafted_tokens_add_up(cases: st.SearchStrategy[Any], data: st.DataObject) -> None:
    reply = data.draw(cases).generation()
    told = [event for event in reply.events() if event.id is not None]
    assert sum(event.drafted_by is not None for event in told) == reply.statistics.accepted
    assert [event.round for event in told] == sorted(event.round for event in told)
    assert {event.round for event in told} == set(range(1, reply.statistics.rounds + 1))


@pytest.mark.long
@given(seed=st.integers(0, 1000), n_top=st.integers(0, 7), limit=st.integers(0, 4))
def test_probabilities_are_those_of_the_model_before_any_setting(seed: int, n_top: int, limit: int) -> None:
    table = random_table(6, order=1, seed=seed)
    drafter = ModelDrafter(TableModel(random_table(6, order=1, seed=seed + 1, like=table), n_ctx=64), width=1)
    settings = SamplerSettings(seed=seed, temperature=1.5, top_k=2, repeat_penalty=1.7, logit_bias={3: -5.0})
    reply = reply_of(
        Slot(TableModel(table, n_ctx=64), drafter if limit else NoDrafter()),
        lambda: limit,
        _Names(),
        [1],
        settings,
        max_tokens=30,
        logprobs=n_top,
    )
    events = list(reply.events())
    assert len(events) == 30
    before = 1
    for event in events:
        row = table[before].astype(np.float64)
        log_probabilities = row - np.log(np.exp(row).sum())
        assert event.id is not None and event.logprob == pytest.approx(log_probabilities[event.id], abs=1e-5)
        best = sorted(range(6), key=lambda token: (-row[token], token))[:n_top]
        assert list(event.top) == best
        assert list(event.top.values()) == pytest.approx(log_probabilities[best], abs=1e-5)
        before = event.id


def test_what_is_not_asked_for_is_not_told() -> None:
    speculator = Slot(TableModel(random_table(6, order=1, seed=1), n_ctx=64), NoDrafter())
    reply = reply_of(speculator, lambda: 0, _Names(), [1], SamplerSettings(), max_tokens=5)
    assert [(event.logprob, dict(event.top)) for event in reply.events()] == [(None, {})] * 5
    with pytest.raises(SettingsError, match="logprobs"):
        reply_of(speculator, lambda: 0, _Names(), [1], SamplerSettings(), logprobs=-1)


class _Names:
    """Tokens are letters, and none ends a reply."""

    def token_bytes(self, token: int) -> bytes:
        return b"abcdef"[token : token + 1]

    def ends(self, token: int) -> bool:
        return False
