"""Laws of acceptance: it counts where a model picks the target's own tokens, whatever the rows per decode are."""

from __future__ import annotations

import numpy as np
import pytest
from letters import LetterTokenizer
from speculator_replies import reply_of

from edge_spec import SamplerSettings
from edge_spec.speculation.drafters.plain import NoDrafter
from edge_spec.speculation.loop import Slot
from edge_spec.testing import TableModel, random_table
from edge_spec.tokens.kept_tokens import KeptTokens
from edge_spec.training.acceptance import Written, acceptance, rows_after, write

TABLE = random_table(5, order=1, seed=2, scale=1.0)
PROMPTS = [[1, 2, 3], [0], [4, 4, 1, 0, 2, 2]]
SETTINGS = [
    SamplerSettings(temperature=0),
    SamplerSettings(temperature=0.8, seed=5),
    SamplerSettings(temperature=1.2, top_k=3, repeat_penalty=1.3, seed=9),
]


def written(settings: SamplerSettings, max_tokens: int = 40) -> list[Written]:
    return list(write(TableModel(TABLE), PROMPTS, settings, ends=lambda token: False, max_tokens=max_tokens))


@pytest.mark.parametrize("settings", SETTINGS)
def test_the_text_is_the_one_that_a_reply_would_be(settings: SamplerSettings) -> None:
    found = written(settings)
    assert [tuple(each.prompt) for each in found] == [tuple(prompt) for prompt in PROMPTS]
    for each in found:
        speculator = Slot(TableModel(TABLE), NoDrafter())
        reply = reply_of(speculator, lambda: 0, LetterTokenizer(), each.prompt, each.settings, max_tokens=40)
        reply.read()
        assert tuple(reply.token_ids) == each.reply


def test_replies_end_where_the_target_ends_them() -> None:
    found = list(write(TableModel(TABLE), PROMPTS, SETTINGS[1], ends=lambda token: token == 2, max_tokens=40))
    assert all(2 not in each.reply[:-1] for each in found)
    assert any(each.reply[-1] == 2 for each in found)


def test_prompts_without_room_are_left_out_and_change_no_other_seed() -> None:
    target = TableModel(TABLE, n_ctx=14)
    found = list(write(target, [[], [1] * 5, [1] * 4], SETTINGS[1], ends=lambda token: False, max_tokens=10))
    assert [(each.prompt, each.settings.seed) for each in found] == [((1, 1, 1, 1), 7)]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("max_rows", [1, 3, 64])
def test_the_target_accepts_all_of_its_own_text(settings: SamplerSettings, max_rows: int) -> None:
    found = acceptance(TableModel(TABLE, max_rows=max_rows), written(settings))
    assert (found.share, found.n_tokens) == (1.0, 3 * 40)


def test_a_model_that_is_wrong_after_one_token_loses_just_those_places() -> None:
    wrong = TABLE.copy()
    wrong[3] = np.roll(wrong[3], 1)
    texts = written(SETTINGS[0])
    before = [token for each in texts for token in (each.prompt[-1], *each.reply[:-1])]
    assert 0 < before.count(3) < len(before)
    assert acceptance(TableModel(wrong), texts).share == 1 - before.count(3) / len(before)


def test_shared_noise_makes_a_similar_model_agree_more_often() -> None:
    near, far = (random_table(5, order=1, seed=3, scale=scale, like=TABLE) for scale in (0.3, 2.0))
    texts = written(SETTINGS[1], max_tokens=400)
    other_noise = [Written(settings=SETTINGS[2], prompt=each.prompt, reply=each.reply) for each in texts]
    share = acceptance(TableModel(near), texts).share
    assert share > acceptance(TableModel(far), texts).share
    assert share > acceptance(TableModel(near), other_noise).share


def test_a_drafter_that_lacks_tokens_is_right_less_often() -> None:
    """One that knows all tokens and has the target's own table is always right."""
    texts = list(write(TableModel(TABLE), [[1, 2], [0]], SamplerSettings(seed=3), ends=lambda token: False))

    def share(ids: list[int]) -> float:
        own = np.zeros((len(ids) + 1, len(ids) + 1), np.float32)
        own[:-1, :-1] = TABLE[np.ix_(ids, ids)]
        model = TableModel(own)
        model.pool.trim(KeptTokens(ids, 5))
        return acceptance(model, texts).share

    assert share([0, 1, 2, 3, 4]) == 1.0
    assert 0.0 < share([0, 1, 3]) < 1.0


@pytest.mark.parametrize("first", [0, 1, 7])
@pytest.mark.parametrize("max_rows", [1, 4, 64])
def test_rows_are_those_of_the_text_however_they_are_cut(first: int, max_rows: int) -> None:
    text = np.random.default_rng(0).integers(0, 5, 20).tolist()
    model = TableModel(TABLE, max_rows=max_rows)
    model.prefill([1, 1, 1])  # an earlier text leaves no trace
    assert np.array_equal(rows_after(model, text, first), TABLE[text[first:]])
