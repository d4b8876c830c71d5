"""What grammars over a model's tokens allow, by texts."""

from __future__ import annotations

import random
from functools import cache

import numpy as np

from edge_spec.llama_cpp.weights import LlamaWeights
from edge_spec.models import resolve_family
from edge_spec.sampling.guidance import GuidedGrammar, GuidedVocabulary
from edge_spec.sampling.lark import Lark

__all__ = ["demo_vocabulary", "random_text", "takes"]


@cache
def demo_vocabulary() -> GuidedVocabulary:
    """The tokens of the demo's model, which has one for each byte."""
    return GuidedVocabulary(LlamaWeights(resolve_family("demo").target, vocab_only=True))


@cache
def _pieces(vocabulary: GuidedVocabulary) -> list[bytes]:
    return [vocabulary.tokenizer.token_bytes(token) for token in range(vocabulary.n_vocab)]


@cache
def _tokens_of(vocabulary: GuidedVocabulary) -> dict[bytes, int]:
    return {raw: token for token, raw in enumerate(_pieces(vocabulary))}


def takes(grammar: GuidedGrammar, text: str) -> bool:
    """Return whether a grammar allows a text, byte by byte, and the end after it."""
    vocabulary, state = grammar.vocabulary, grammar.start()
    tokens = _tokens_of(vocabulary)
    for byte in text.encode():
        token = tokens[bytes([byte])]
        following = state.after(token) if state.allowed([token])[0] else None
        if following is None:
            return False
        state = following
    return bool(state.allowed([vocabulary.end])[0])


def random_text(lark: Lark, seed: int, most: int) -> str | None:
    """A text that a grammar allows, of random tokens; None if it has not ended after ``most`` of them."""
    vocabulary, chance = demo_vocabulary(), random.Random(seed)
    pieces = _pieces(vocabulary)
    state, written = GuidedGrammar(vocabulary, lark).start(), b""
    for _ in range(most):
        may = np.flatnonzero(state.allowed(range(vocabulary.n_vocab)))
        ends = [token for token in may if token in vocabulary.ends]
        others = [token for token in may if token not in vocabulary.ends]
        if ends and (not others or chance.random() < 0.3):
            return written.decode()
        # Short ones, so that few of them are the content of texts.
        short = [token for token in others if len(pieces[token]) < 3]
        token = int(chance.choice(short if short and chance.random() < 0.7 else others))
        written += pieces[token]
        following = state.after(token)
        assert following is not None
        state = following
    return None
