"""Laws of long texts: tokenized in parts they are what they are as a whole."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_spec.engines.llama import special_tokens
from edge_spec.engines.llama.special_tokens import SpecialTokens
from edge_spec.engines.llama.weights import LlamaWeights
from edge_spec.models import resolve_family


@pytest.fixture(scope="module")
def weights() -> Iterator[LlamaWeights]:
    found = LlamaWeights(Path(resolve_family("demo").target), vocab_only=True)
    yield found
    found.close()


def test_parts_of_a_text_have_its_tokens(weights: LlamaWeights, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [weights.name(token) for token in range(weights.n_vocab) if not weights.token_bytes(token)]
    pieces = [*filter(None, names), " ", "\n", "a", "<|im", "|>", "Once upon a time", "é", "🙂", "x" * 30]
    draw = random.Random(1)
    texts = ["".join(draw.choices(pieces, k=80)) for _ in range(50)]
    whole = [weights.tokenize(text, add_special=True) for text in texts]
    monkeypatch.setattr(special_tokens, "_WHOLE_BYTES", 0)
    monkeypatch.setattr(special_tokens, "_LEAST_BYTES", 8)
    assert [weights.tokenize(text, add_special=True) for text in texts] == whole
    assert all(len([*weights._special_tokens.parts(text.encode())]) > 5 for text in texts)


def test_no_token_is_cut_in_two_nor_loses_its_space(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(special_tokens, "_WHOLE_BYTES", 0)
    monkeypatch.setattr(special_tokens, "_LEAST_BYTES", 1)
    found = SpecialTokens({b"<a>": False, b"x<a>y": False, b"<m>": True})
    assert [*found.parts(b"one<a>two x<a>y <m><a>")] == [b"one", b"<a>two ", b"x<a>y <m>", b"<a>"]
    assert [*SpecialTokens({}).parts(b"one<a>")] == [b"one<a>"]
