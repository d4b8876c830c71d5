"""Grammars in GBNF by llama.cpp's own code, over the tokens of a model."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from edge_spec.backends.llama.library import library
from edge_spec.backends.llama.weights import LlamaWeights
from edge_spec.errors import SettingsError
from edge_spec.sampling.gbnf import check_gbnf

__all__ = ["LlamaGrammar"]

_CANDIDATE = np.dtype([("id", "<i4"), ("logit", "<f4"), ("p", "<f4")])
_BYTES_PER_TOKEN = 8
"""How far ahead forced text is looked for, per token that is wanted."""


class LlamaGrammar:
    """A grammar over a vocabulary.

    Tokens that show no text, such as control tokens, are never part of a reply; llama.cpp would take their names for
    text.

    Raises:
        SettingsError: the grammar has a mistake.
    """

    def __init__(self, weights: LlamaWeights, text: str) -> None:
        check_gbnf(text)
        self._weights = weights
        self._c = library().c
        library().complaint()
        handle = self._c.llama_sampler_init_grammar(weights.vocab, text.encode("utf-8"), b"root")
        if not handle:
            raise SettingsError(f"llama.cpp does not take the grammar: {library().complaint()}", hint="simplify it")
        self._start = _State(self, handle)

    def start(self) -> _State:
        return self._start

    def ends(self, token: int) -> bool:
        return self._weights.ends(token)

    def speaks(self, token: int) -> bool:
        """Whether a token can be part of a reply."""
        weights = self._weights
        return token < weights.n_vocab and (bool(weights.piece(token)) or weights.ends(token))

    @cached_property
    def bytes(self) -> dict[int, int]:
        """For every byte that is the text of a token, the token (the last one, should there be two) and the byte."""
        pieces = ((token, self._weights.piece(token)) for token in range(self._weights.n_vocab))
        tokens = {piece[0]: token for token, piece in pieces if len(piece) == 1}
        return {token: byte for byte, token in tokens.items()}

    @property
    def eos(self) -> int:
        return self._weights.eos

    def cut(self, raw: bytes) -> list[int]:
        """Tokens for a text, the whole text and nothing else; none if the tokeniser cannot do that."""
        text = raw.decode("utf-8", "ignore")
        pieces = self._weights.piece
        # Some tokenisers put a space before every text, but not after a line break within it.
        for before in ("", "\n"):
            tokens = self._weights.tokenize(before + text, add_special=False)
            if before:
                line = next((n for n, token in enumerate(tokens) if pieces(token).endswith(b"\n")), -1)
                tokens = tokens[line + 1 :]
            if text and b"".join(map(pieces, tokens)) == text.encode():
                return tokens
        return []


class _State:
    """llama.cpp's grammar sampler, as it stands after some tokens."""

    def __init__(self, grammar: LlamaGrammar, handle: Any) -> None:
        self._grammar = grammar
        self._c = grammar._c
        self._handle = handle

    def __del__(self) -> None:
        self._c.llama_sampler_free(self._handle)

    def allowed(self, tokens: Sequence[int]) -> list[bool]:
        grammar = self._grammar
        asked = np.zeros(len(tokens), dtype=_CANDIDATE)
        asked["id"] = tokens
        speaks = [grammar.speaks(token) for token in tokens]
        if not all(speaks):
            asked = asked[speaks]
        answers = iter(_apply(self._c, self._handle, asked))
        return [speaks_ and next(answers) for speaks_ in speaks]

    def after(self, token: int) -> _State | None:
        if self._grammar.ends(token):
            return None
        handle = self._c.llama_sampler_clone(self._handle)
        self._c.llama_sampler_accept(handle, token)
        return _State(self._grammar, handle)

    def forced(self, most: int) -> list[int]:
        grammar = self._grammar
        known = grammar.bytes
        asked = np.zeros(len(known), dtype=_CANDIDATE)
        handle, raw, ended = None, bytearray(), False
        # All ways the text can go on differ in their first byte, or there is but one way.
        try:
            while len(raw) < _BYTES_PER_TOKEN * most:
                at = handle or self._handle
                ended = self._may_end(at)
                asked["id"], asked["logit"] = list(known), 0
                following = [token for token, may in zip(known, _apply(self._c, at, asked), strict=True) if may]
                if ended or len(following) != 1:
                    ended = ended and not following
                    break
                handle = handle or self._c.llama_sampler_clone(self._handle)
                self._c.llama_sampler_accept(handle, following[0])
                raw.append(known[following[0]])
        finally:
            if handle:
                self._c.llama_sampler_free(handle)
        tokens = grammar.cut(bytes(raw)) if raw else []
        if ended and (tokens or not raw):
            tokens.append(grammar.eos)
        return tokens[:most]

    def _may_end(self, handle: Any) -> bool:
        eos = self._grammar.eos
        asked = np.zeros(1, dtype=_CANDIDATE)
        asked["id"] = eos
        return eos >= 0 and _apply(self._c, handle, asked)[0]


def _apply(c: Any, handle: Any, asked: np.ndarray[Any, Any]) -> list[bool]:
    """Which of the candidates keep their logit of 0."""
    array = c.llama_token_data_array(asked.ctypes.data_as(ctypes.POINTER(c.llama_token_data)), len(asked), -1, False)
    c.llama_sampler_apply(handle, ctypes.byref(array))
    return (asked["logit"] == 0).tolist()  # type: ignore[no-any-return]
