"""Laws of the tokenizers of GGUFs: llama.cpp's ids, without it."""

from __future__ import annotations

import random
from contextlib import closing
from pathlib import Path

import pytest
from drawn_texts import drawn_text
from vocabulary_files import write_byte_level, write_plain

from edge_spec.llama_cpp.weights import LlamaWeights
from edge_spec.models.gguf.header import read_header
from edge_spec.models.gguf_tokenizer.pretokenizers import PRETOKENIZERS
from edge_spec.models.gguf_tokenizer.tokenizer import GGUFTokenizer


def opened(path: Path) -> GGUFTokenizer:
    return GGUFTokenizer(read_header(path))


def require_equal(path: Path, n_texts: int) -> None:
    """Compare a vocabulary with llama.cpp's reading of it, token by token and in drawn texts."""
    ours = opened(path)
    with closing(LlamaWeights(path, vocab_only=True)) as theirs:
        for said in ("n_vocab", "bos", "eos", "adds_bos", "control_names"):
            assert getattr(ours, said) == getattr(theirs, said), said
        for token in range(ours.n_vocab):
            assert ours.ends(token) == theirs.ends(token), theirs.name(token)
            assert (ours.name(token), ours.token_bytes(token)) == (theirs.name(token), theirs.token_bytes(token))
        defined = {
            name for name in map(ours.name, range(ours.n_vocab)) if len(ours.tokenize(name, add_special=False)) == 1
        }
        names = sorted(name for name in ours.control_names | defined if name.startswith(("<", "\n")))
        draw = random.Random(7)
        for _ in range(n_texts):
            text = drawn_text(draw, names)
            how = {"add_special": draw.random() < 0.3, "controls": draw.random() < 0.6}
            assert ours.tokenize(text, **how) == theirs.tokenize(text, **how), (text, how)


@pytest.mark.parametrize("pre", PRETOKENIZERS)
def test_words_are_cut_as_llama_cpp_cuts_them(tmp_path: Path, pre: str) -> None:
    require_equal(write_byte_level(tmp_path / "vocabulary.gguf", pre), 200)


@pytest.mark.parametrize("kind", ["llama", "gemma4"])
def test_pairs_of_plain_text_are_merged_as_llama_cpp_merges_them(tmp_path: Path, kind: str) -> None:
    require_equal(write_plain(tmp_path / "vocabulary.gguf", kind), 500)
