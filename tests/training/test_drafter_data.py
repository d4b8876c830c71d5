"""Laws of what a drafter learns from: prompts, the target's answers, and the vocabulary chosen from them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_spec.errors import DiskFull, ModelFileError, SettingsError
from edge_spec.sampling import SamplerSettings
from edge_spec.testing import TableModel, random_table
from edge_spec.training.acceptance import write
from edge_spec.training.drafter.answers import divided, prepare, read_answers
from edge_spec.training.drafter.exchanges import Exchange, exchanges_in
from edge_spec.training.drafter.portions import Portion, portions_in, require_disk, write_portions
from edge_spec.training.drafter.prompts import prompts_in
from edge_spec.training.drafter.settings import MakeSettings
from edge_spec.training.drafter.writing import AnswerWriter, Question, texts_of

TABLE = random_table(40, order=1, seed=2, scale=2.0)


class Numbers:
    """Asks a table model in tokens."""

    def prompts(self, numbers: Sequence[int]) -> list[list[int]]:
        return [[number % 40, 7 * number % 40, 3] for number in numbers]


def ends(token: int) -> bool:
    return token == 5


def test_prompts_are_first_user_turns_and_passages_with_an_instruction(tmp_path: Path) -> None:
    turns = [{"role": "system", "text": "Be kind."}, {"role": "user", "text": "How are you?"}]
    records = [
        {"turns": [turns[1], {"role": "assistant", "text": "Fine."}, {"role": "user", "text": "Second turn?"}]},
        {"turns": [{"role": "assistant", "text": "Only an answer."}]},
        {"text": "A passage of some words."},
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
    (tmp_path / "deeper").mkdir()
    (tmp_path / "deeper" / "b.txt").write_text("Long paragraph. " * 50 + "\n\n" + "Another one. " * 40, "utf-8")
    (tmp_path / "c.bin").write_bytes(b"\xff")
    prompts = prompts_in(tmp_path, seed=1)
    assert "How are you?" in prompts
    assert not any("Second turn" in prompt or "Only an answer" in prompt for prompt in prompts)
    assert sum(prompt.endswith("A passage of some words.") for prompt in prompts) == 1
    assert sum("Long paragraph" in prompt for prompt in prompts) == 1
    assert sum("Another one" in prompt for prompt in prompts) == 1
    assert prompts == prompts_in(tmp_path, seed=1)
    assert len(prompts) == len(set(prompts))


def test_sources_take_turns(tmp_path: Path) -> None:
    for name, n in (("many", 50), ("few", 4), ("other", 6)):
        records = [{"source": name, "turns": [f"{name}: what is this? {number}"]} for number in range(n)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
    prompts = prompts_in(tmp_path, seed=1, most=15)
    assert len(prompts) == 15
    assert Counter(prompt.split(":")[0] for prompt in prompts[:12]) == {"many": 4, "few": 4, "other": 4}


def test_texts_without_a_prompt_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="no folder") as caught:
        prompts_in(tmp_path / "missing", seed=1)
    assert "--texts" in caught.value.hint
    with pytest.raises(ModelFileError, match="holds no text"):
        prompts_in(tmp_path, seed=1)
    (tmp_path / "a.txt").write_text("1234 5678\n\n--", "utf-8")
    with pytest.raises(ModelFileError, match="give 0 prompts"):
        prompts_in(tmp_path, seed=1)
    (tmp_path / "b.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(ModelFileError, match=r"b\.txt is not readable text"):
        prompts_in(tmp_path, seed=1)


@pytest.mark.parametrize("max_rows", [16, 2, 1])
def test_answers_written_at_once_are_those_written_alone(max_rows: int) -> None:
    """Each of several draws what it draws where there is no other, however many slots there are."""
    model = TableModel(TABLE, max_rows=max_rows, widths=tuple(range(1, max_rows + 1)))
    questions = [Question([1, 2, 3], 4), Question([7, 8], 5), Question([9, 9, 1, 4], 6, (1.0,))]
    texts = texts_of(model, 64)
    assert len(texts) == max_rows
    found = AnswerWriter(texts, ends).answers(questions, max_tokens=30)
    for question, answers in zip(questions, found, strict=True):
        assert len(answers) == len(question.temperatures)
        for number, (answer, temperature) in enumerate(zip(answers, question.temperatures, strict=True)):
            settings = SamplerSettings(temperature=temperature, seed=question.seed, attempt=number)
            (alone,) = write(TableModel(TABLE), [question.prompt], settings, ends=ends, max_tokens=30)
            assert answer.tokens == list(alone.reply)
            for place, token in enumerate([question.prompt[-1], *answer.tokens[:-1]]):
                row = TABLE[token].astype(np.float64)
                expected = row - np.log(np.exp(row).sum())
                assert set(answer.likeliest[place].tolist()) == set(range(40))
                assert np.allclose(answer.logs[place], expected[answer.likeliest[place]], atol=1e-4)


@pytest.fixture
def portions(tmp_path: Path) -> Path:
    settings = MakeSettings(tokens=1500, answer_tokens=24, vocabulary=64, width=64)
    writer = AnswerWriter(texts_of(TableModel(TABLE, max_rows=16), 64), ends)
    folder = tmp_path / "answers"
    n = write_portions(
        folder, Numbers(), writer, settings, n_vocab=40, longest=64, clock=_Stopwatch(), say=lambda line: None
    )  # type: ignore[arg-type]
    assert n >= 1500
    return folder


class _Stopwatch:
    """Time that stands still."""

    elapsed_s = 0.0
    over = False


def test_what_is_trained_on_is_what_the_target_expected(portions: Path, tmp_path: Path) -> None:
    prepare(portions, tmp_path / "prepared", n_vocab=40, n_kept=20)
    answers = read_answers(tmp_path / "prepared")
    assert len(answers.kept) == 20
    assert (np.diff(answers.kept) > 0).all()
    raw = np.concatenate([portion.tokens for portion in portions_in(portions)])
    back = np.append(answers.kept, -1)[answers.tokens]
    known = back >= 0
    assert (back[known] == raw[known]).all()
    assert not np.isin(raw[~known], answers.kept).any()
    sums = answers.chances.astype(np.float64).sum(1)
    assert np.allclose(sums, 1, atol=0.01)
    learned = np.flatnonzero(answers.expected >= 0)
    assert (answers.expected[learned] == np.arange(len(learned))).all()
    for place in learned[:: max(1, len(learned) // 50)]:
        row = TABLE[raw[place]].astype(np.float64)
        law = np.exp(row - row.max()) / np.exp(row - row.max()).sum()
        mass = np.zeros(21)
        np.add.at(mass, answers.columns[answers.expected[place]], answers.chances[answers.expected[place]])
        assert np.allclose(mass[:-1], law[answers.kept], atol=0.01)
        assert mass[-1] == pytest.approx(1 - law[answers.kept].sum(), abs=0.02)


def test_the_vocabulary_is_what_the_target_writes_most(portions: Path, tmp_path: Path) -> None:
    prepare(portions, tmp_path / "prepared", n_vocab=40, n_kept=10)
    answers = read_answers(tmp_path / "prepared")
    written: Counter[int] = Counter()
    for portion in portions_in(portions):
        begin = 0
        for length, n_prompt in zip(portion.lengths.tolist(), portion.prompts.tolist(), strict=True):
            written.update(portion.tokens[begin + n_prompt : begin + length].tolist())
            begin += length
    most = {token for token, _ in written.most_common(6)}
    assert most <= set(answers.kept.tolist())
    known = sum(n for token, n in written.items() if token in answers.kept)
    assert answers.coverage == pytest.approx(known / written.total())


def test_a_head_that_learns_on_keeps_its_vocabulary(portions: Path, tmp_path: Path) -> None:
    known = np.arange(3, 39, 4)
    prepare(portions, tmp_path / "prepared", n_vocab=40, n_kept=20, known=known)
    answers = read_answers(tmp_path / "prepared")
    assert answers.kept.tolist() == known.tolist()
    answered = np.concatenate([portion.tokens[_answers_of(portion)] for portion in portions_in(portions)])
    assert answers.coverage == pytest.approx(np.isin(answered, known).mean())


def _answers_of(portion: Portion) -> np.ndarray:
    spans = zip(portion.lengths.tolist(), portion.prompts.tolist(), strict=True)
    return np.concatenate([np.arange(length) >= n_prompt for length, n_prompt in spans])


def test_a_disk_without_room_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage:
        free = 1 << 20

    monkeypatch.setattr("shutil.disk_usage", lambda folder: Usage)
    require_disk(tmp_path, 100)
    with pytest.raises(DiskFull, match="1 MiB are free") as caught:
        require_disk(tmp_path, 1_000_000)
    assert "--tokens" in caught.value.hint


@pytest.mark.parametrize("wrong", [{"width": 100}, {"vocabulary": 32}, {"tokens": 0}, {"passes": 0.0}])
def test_settings_out_of_range_name_the_option(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError) as caught:
        MakeSettings(**wrong)
    assert caught.value.argument == next(iter(wrong))


def test_shapes_are_ones_that_both_engines_run() -> None:
    for width in (64, 96, 128, 192, 256, 320):
        shape = MakeSettings(width=width).shape(49152)
        assert shape.n_vocab == 16_384
        assert shape.head_dim in (32, 64)
    assert MakeSettings().shape(8192).n_vocab == 8192


def test_a_prompt_is_answered_greedily_once(tmp_path: Path) -> None:
    """Where prompts are asked again, also after an interruption: that answer would be the same."""
    settings = MakeSettings(tokens=3000, answer_tokens=24, vocabulary=64, width=64)

    class Few:
        """Asks three prompts again and again."""

        def prompts(self, numbers: Sequence[int]) -> list[list[int]]:
            return [[number % 3, 7, 3] for number in numbers]

    def written(n_tokens: int, folder: Path) -> list[list[int]]:
        write_portions(
            folder,
            Few(),  # type: ignore[arg-type]
            AnswerWriter(texts_of(TableModel(TABLE, max_rows=16), 64), ends),
            replace(settings, tokens=n_tokens),
            n_vocab=40,
            longest=64,
            clock=_Stopwatch(),  # type: ignore[arg-type]
            say=lambda line: None,
        )
        return [
            text.tolist()
            for portion in portions_in(folder)
            for text in np.split(portion.tokens, np.cumsum(portion.lengths)[:-1])
        ]

    texts = written(3000, tmp_path / "whole")
    (tmp_path / "stopped").mkdir()
    written(1, tmp_path / "stopped")
    assert written(3000, tmp_path / "stopped") == texts
    for number in range(3):
        prompt = [number, 7, 3]
        (greedy,) = write(TableModel(TABLE), [prompt], SamplerSettings(temperature=0), ends=ends, max_tokens=24)
        assert texts.count([*prompt, *greedy.reply]) == 1
        assert len({tuple(text) for text in texts if text[:3] == prompt}) > 10


def test_all_answers_to_a_prompt_are_held_out_together(portions: Path, tmp_path: Path) -> None:
    prepare(portions, tmp_path / "prepared", n_vocab=40, n_kept=20)
    answers = read_answers(tmp_path / "prepared")
    prompts = [tuple(prompt) for portion in portions_in(portions) for prompt in portion.asked]
    assert len(set(prompts)) < len(prompts) == len(answers.begins) - 1
    for seed in range(5):
        learned, valid = divided(answers, seed)
        assert sorted([*learned, *valid]) == list(range(len(prompts)))
        assert len(valid) >= len(prompts) / 100
        assert not {prompts[text] for text in learned} & {prompts[text] for text in valid}
    assert not np.array_equal(divided(answers, 1)[1], divided(answers, 2)[1])


def test_exchanges_are_first_answers_and_passages_that_go_on(tmp_path: Path) -> None:
    def turns(*texts: str, first: str = "user") -> list[dict[str, str]]:
        roles = ["user", "assistant"] if first == "user" else ["assistant", "user"]
        return [{"role": roles[number % 2], "text": text} for number, text in enumerate(texts)]

    answer = "An answer of some words."
    records = [
        {"turns": [{"role": "system", "text": "Be kind."}, *turns("What is this?", answer, "And that?", answer)]},
        {"turns": turns("What is held out?", answer)},
        {"turns": turns("Hello!", answer, answer, first="assistant")},
        {"turns": turns("What is short?", "Yes.")},
        {"turns": ["Only questions?", "And another one?"]},
        {"text": "One two three four five six seven eight nine ten."},
        {"text": "A passage that somebody is asked about."},
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
    (tmp_path / "b.md").write_text("Words of a file that go on and on until they end.", "utf-8")
    without = ["What is held out?", "Explain this text:\n\nA passage that somebody is asked about."]
    found = exchanges_in(tmp_path, seed=1, most=9, without=without)
    assert sorted(found, key=lambda each: each.asked) == [
        Exchange("Continue this text:\n\nOne two three four", "five six seven eight nine ten."),
        Exchange("Continue this text:\n\nWords of a file that", "go on and on until they end."),
        Exchange("What is this?", answer),
    ]
    assert exchanges_in(tmp_path, seed=1, most=2, without=without) == found[:2]
