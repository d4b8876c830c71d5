"""Laws of vocabularies: a drafter's token ids must mean what the target's mean."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter

from edge_spec.errors import VocabularyMismatch
from edge_spec.models import ModelFile, check_pair, inspect, resolve_family

WORDS = [f"word {i}" for i in range(64)]


def model(
    path: Path, words: list[str], *, kind: str = "gpt2", eos: int | None = 2, types: int = 1, width: int = 32
) -> ModelFile:
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_embedding_length(width)
    writer.add_head_count(1)
    writer.add_tokenizer_model(kind)
    writer.add_token_list(words)
    writer.add_token_types([types] * len(words))
    if eos is not None:
        writer.add_eos_token_id(eos)
    writer.add_tensor("token_embd.weight", np.zeros((len(words), width), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return inspect(path)


@pytest.fixture
def target(tmp_path: Path) -> ModelFile:
    return model(tmp_path / "target.gguf", WORDS)


def test_the_demo_models_fit_together() -> None:
    family = resolve_family("demo")
    assert family.intermediate is not None
    assert family.draft is not None
    models = [inspect(path) for path in (family.target, family.intermediate, family.draft)]
    for target in models:
        for drafter in models:
            check_pair(target, drafter)
    assert len({file.vocabulary.fingerprint for file in models}) == 1


def test_vocabulary_does_not_depend_on_the_size_of_the_model(target: ModelFile, tmp_path: Path) -> None:
    wider = model(tmp_path / "wider.gguf", WORDS, width=64)
    assert wider.vocabulary == target.vocabulary
    assert wider.fingerprint != target.fingerprint


def test_a_chat_version_may_draft_for_a_base_model(target: ModelFile, tmp_path: Path) -> None:
    for other in (model(tmp_path / "a.gguf", WORDS, eos=3), model(tmp_path / "b.gguf", WORDS, types=4)):
        assert other.vocabulary.fingerprint != target.vocabulary.fingerprint
        check_pair(target, other)


def test_a_mismatch_names_the_first_token_that_differs(target: ModelFile, tmp_path: Path) -> None:
    other = model(tmp_path / "other.gguf", [*WORDS[:40], "something else", *WORDS[41:]])
    with pytest.raises(VocabularyMismatch, match=r"token 40 is 'something else' in one and 'word 40'") as caught:
        check_pair(target, other)
    assert caught.value.hint


def test_a_mismatch_names_both_sizes(target: ModelFile, tmp_path: Path) -> None:
    shorter = model(tmp_path / "shorter.gguf", WORDS[:60])
    with pytest.raises(VocabularyMismatch, match="60 and 64 tokens"):
        check_pair(target, shorter)
    with pytest.raises(VocabularyMismatch, match="64 and 60 tokens"):
        check_pair(shorter, target)


def test_a_mismatch_names_the_tokenizers(target: ModelFile, tmp_path: Path) -> None:
    with pytest.raises(VocabularyMismatch, match="'llama' and 'gpt2'"):
        check_pair(target, model(tmp_path / "llama.gguf", WORDS, kind="llama"))


def test_moving_a_boundary_between_tokens_is_noticed(target: ModelFile, tmp_path: Path) -> None:
    moved = model(tmp_path / "moved.gguf", [WORDS[0] + "w", WORDS[1][1:], *WORDS[2:]])
    with pytest.raises(VocabularyMismatch, match="token 0"):
        check_pair(target, moved)


def test_token_ids_count_even_if_the_set_is_the_same(target: ModelFile, tmp_path: Path) -> None:
    with pytest.raises(VocabularyMismatch, match="token 0"):
        check_pair(target, model(tmp_path / "reversed.gguf", WORDS[::-1]))
