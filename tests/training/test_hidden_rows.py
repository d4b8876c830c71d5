"""Laws of the hidden states that a head learns from: written along with answers, or by reading these again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from hybrid_files import HybridFiles

from edge_spec.engines.onnx.kernels import available
from edge_spec.engines.registry import engine
from edge_spec.errors import ModelFileError, UnsupportedModel
from edge_spec.generation.prompts import PromptBuilder
from edge_spec.models import inspect, resolve_family
from edge_spec.speculation.tree import Tree
from edge_spec.training.drafter.exchanges import Exchange
from edge_spec.training.drafter.heads import target_layers
from edge_spec.training.drafter.hidden import StoredRows
from edge_spec.training.drafter.opened import opened_with_hidden_rows, require_hidden_rows
from edge_spec.training.drafter.portions import hidden_path
from edge_spec.training.drafter.reading import AnswerReader
from edge_spec.training.drafter.writing import AnswerWriter, Question, texts_of

TARGET = inspect(resolve_family("demo").target)


@pytest.mark.skipif(available() is not None, reason="the kernels were not built")
@pytest.mark.parametrize("exact", [True, False])
def test_answers_are_written_with_the_rows_that_reading_them_gives(exact: bool, probe_cache: Path) -> None:
    """Also where one text is written after the other, since rows of several would round differently."""
    onnx, layers = engine("onnx"), target_layers(TARGET)
    opened = opened_with_hidden_rows(TARGET, onnx, 96, layers, cache_dir=probe_cache, exact=exact)
    with opened as (model, tokenizer, rows):
        texts = texts_of(model, 96)
        assert (len(texts) > 1) == exact
        writer = AnswerWriter(texts, tokenizer.ends, rows)
        prompts = [list(range(300 + n, 320 + 3 * n)) for n in range(7)]
        asked = [Question(prompt, seed=n) for n, prompt in enumerate(prompts)]
        found = writer.answers(asked, max_tokens=20)
        for prompt, answers in zip(prompts, found, strict=True):
            for answer in answers:
                text = [*prompt, *answer.tokens]
                model.rollback(0)
                model.prefill(text)
                assert answer.hidden is not None
                read = rows[0 : len(text) - 1].astype(np.float32)
                assert answer.hidden.shape == read.shape
                apart = np.abs(answer.hidden - read).max() / read.std()
                assert apart == 0 if exact else apart < 0.2


@pytest.mark.skipif(available() is not None, reason="the kernels were not built")
def test_what_others_wrote_is_read_as_if_the_target_had_written_it(probe_cache: Path) -> None:
    onnx, layers = engine("onnx"), target_layers(TARGET)
    with opened_with_hidden_rows(TARGET, onnx, 96, layers, cache_dir=probe_cache) as (model, tokenizer, rows):
        builder = PromptBuilder(tokenizer, TARGET.chat_template, model.n_vocab)
        reader = AnswerReader(model, builder, rows, longest=40, answer_tokens=24)
        found = reader.read(Exchange("What is a lantern?", "A lantern is a small light."))
        assert found is not None
        prompt, answer = found
        assert prompt == builder.tokens_of("What is a lantern?")
        assert builder.detokenize(answer.tokens[:-1]) == "A lantern is a small light."
        assert tokenizer.ends(answer.tokens[-1])
        text = [*prompt, *answer.tokens]
        for place, (ids, logs) in enumerate(zip(answer.likeliest, answer.logs, strict=True), start=len(prompt)):
            model.rollback(0)
            model.prefill(text[: place - 1])
            row = model.decode(Tree.sequence(text[place - 1 : place]))[0].astype(np.float64)
            expected = row - row.max() - np.log(np.exp(row - row.max()).sum())
            assert np.abs(logs - expected[ids]).max() < 0.3
            assert expected[ids].min() > np.sort(expected)[-len(ids)] - 0.3
        model.rollback(0)
        model.prefill(text)
        assert answer.hidden is not None
        read = rows[0 : len(text) - 1].astype(np.float32)
        assert np.abs(answer.hidden - read).max() / read.std() < 0.2
        cut = reader.read(Exchange("What is a lantern?", "A lantern is a small light. " * 9))
        assert cut is not None
        assert len(cut[1].tokens) == 24
        assert not tokenizer.ends(cut[1].tokens[-1])
        assert reader.read(Exchange("What is this? " * 20, "Too long a question.")) is None


def test_hidden_rows_of_other_texts_are_refused(tmp_path: Path) -> None:
    for number, rows in enumerate((np.arange(42).reshape(7, 6), np.arange(42, 60).reshape(3, 6))):
        portion = tmp_path / f"{number:05d}.npz"
        portion.touch()
        np.save(hidden_path(portion), rows.astype(np.float16))
    places = np.array([[9, 0], [6, 7]])
    assert np.array_equal(StoredRows(tmp_path, 10)[places], places[..., None] * 6 + np.arange(6))
    with pytest.raises(ModelFileError, match="of other texts"):
        StoredRows(tmp_path, 11)
    hidden_path(portion).write_bytes(b"\x93NUMPY")
    with pytest.raises(ModelFileError, match="remove it"):
        StoredRows(tmp_path, 10)


def test_an_engine_without_hidden_rows_is_refused_with_another_way() -> None:
    with pytest.raises(UnsupportedModel, match="does not provide") as caught:
        require_hidden_rows(TARGET, engine("llama"))
    assert "--kind model" in caught.value.hint
    assert "engine='onnx'" in caught.value.hint


def test_models_with_recurrent_layers_are_refused_with_another_way(hybrids: HybridFiles) -> None:
    with pytest.raises(UnsupportedModel, match="has recurrent layers") as caught:
        require_hidden_rows(inspect(hybrids["lfm2"]), engine("onnx"))
    assert "--kind model" in str(caught.value.hint)
