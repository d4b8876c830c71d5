"""Laws of recordings: they hold the text that the model writes alone, and what would have been drafted everywhere."""

from __future__ import annotations

import pytest
from letters import LetterTokenizer
from record_drafts import record

from edge_spec import Mode, TextModel
from edge_spec.sampling import Sampler, SamplerSettings
from edge_spec.speculation.chooser import Chooser
from edge_spec.speculation.drafters.base import Drafter
from edge_spec.speculation.drafters.model import ModelDrafter
from edge_spec.speculation.drafters.ngram import NgramDrafter
from edge_spec.speculation.drafters.plain import NoDrafter
from edge_spec.speculation.loop import Slot
from edge_spec.speculation.modes import DraftModels
from edge_spec.speculation.target import Target
from edge_spec.speculation.text import Text
from edge_spec.speculation.tree import EMPTY
from edge_spec.testing import TableModel, random_table

TABLE = random_table(5, order=1, seed=2, scale=1.0)
LIKE_IT = random_table(5, order=1, seed=3, scale=0.5, like=TABLE)
ENDLESS = {"logit_bias": {4: float("-inf")}}
PROMPTS = ["abc", "deadbeed", "bad" * 9]


def drafters() -> list[Drafter]:
    return [ModelDrafter(TableModel(LIKE_IT, n_ctx=200), width=2, beam=1), NgramDrafter(shortest=1)]


def open_model(mode: Mode | None) -> TextModel:
    models: DraftModels = None  # type: ignore[assignment]  # these drafters have models of their own
    drafter = mode.build(models) if mode is not None else NoDrafter()
    speculator = Slot(TableModel(TABLE, n_ctx=200), drafter)
    return TextModel(
        Target(speculator), lambda: mode.limit if mode is not None else 0, LetterTokenizer(end=4), mode="off"
    )


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_recordings_hold_the_plain_text_and_every_draft(temperature: float) -> None:
    auto = Mode(name="auto", build=lambda models: Chooser(drafters()), limit=9)
    found = list(record(open_model, auto, PROMPTS, max_tokens=30, **ENDLESS, seed=5, temperature=temperature))
    assert [recording.drafter for recording in found] == ["sequence", "ngram"] * len(PROMPTS)
    with open_model(None) as plain:
        for number, prompt in enumerate(PROMPTS):
            reply = plain.generate(prompt, max_tokens=30, **ENDLESS, seed=5 + number, temperature=temperature)
            reply.read()
            for recording, drafter in zip(found[2 * number :], drafters(), strict=False):
                assert recording.truth == reply.token_ids and len(recording.drafts) == len(recording.truth)
                assert recording.temperature == temperature
                for place, draft in enumerate(recording.drafts):
                    sampler = Sampler(
                        SamplerSettings(temperature=temperature, seed=5 + number, **ENDLESS), reply.prompt
                    )
                    drafter.begin(Text([*reply.prompt, *recording.truth[:place]]), sampler)
                    drafter.read()
                    # No draft is longer than what may still be written.
                    n = min(10, 30 - place - 1)
                    expected = drafter.draft(n) if n else EMPTY
                    assert expected.tokens == draft.tokens and expected.parents == draft.parents
                    # A table's values are what its guesses were worth so far.
                    assert expected.values == draft.values or recording.drafter == "ngram"
    assert any(draft for recording in found for draft in recording.drafts if recording.drafter == "ngram")
