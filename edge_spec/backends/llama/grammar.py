"""Grammars in GBNF by llama.cpp's own code, over the tokens of a model."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

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
        self.weights = weights
        self.c = library().c
        library().complaint()
        handle = self.c.llama_sampler_init_grammar(weights.vocab, text.encode("utf-8"), b"root")
        if not handle:
            raise SettingsError(f"llama.cpp does not take the grammar: {library().complaint()}", hint="simplify it")
        self._start = _State(self, handle)

    def start(self) -> _State:
        return self._start

    def cut(self, raw: bytes) -> list[int]:
        """Tokens for a text, the whole text and nothing else; none if the tokeniser cannot do that."""
        text = raw.decode("utf-8", "ignore")
        pieces = self.weights.piece
        # Some tokenisers put a space before every text, but not after a line break within it.
        for before in ("", "\n"):
            tokens = self.weights.tokenize(before + text, add_special=False)
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
        self._weights = grammar.weights
        self._c = grammar.c
        self._handle = handle

    def __del__(self) -> None:
        self._c.llama_sampler_free(self._handle)

    def allowed(self, tokens: Sequence[int]) -> list[bool]:
        ids = np.asarray(tokens, dtype=np.int64)
        speaking = self._weights.speaking
        may = np.zeros(ids.size, dtype=np.bool_)
        may[ids < speaking.size] = speaking[ids[ids < speaking.size]]
        may[may] = self._apply(self._handle, ids[may])
        return may.tolist()

    def after(self, token: int) -> _State | None:
        if self._weights.ends(token):
            return None
        handle = self._c.llama_sampler_clone(self._handle)
        self._c.llama_sampler_accept(handle, token)
        return _State(self._grammar, handle)

    def forced(self, most: int) -> list[int]:
        # If only one byte may come next, it has to. Tokens of one byte ask about each.
        known = self._weights.single_bytes
        ids = np.fromiter(known, dtype=np.int64)
        handle, raw, over = None, bytearray(), False
        try:
            while len(raw) < _BYTES_PER_TOKEN * most:
                at = handle or self._handle
                following = ids[self._apply(at, ids)].tolist()
                if len(following) > 1 or (self._may_end(at) and following):
                    break
                if not following:
                    over = self._may_end(at)
                    break
                handle = handle or self._c.llama_sampler_clone(self._handle)
                self._c.llama_sampler_accept(handle, following[0])
                raw.append(known[following[0]])
        finally:
            if handle:
                self._c.llama_sampler_free(handle)
        tokens = self._grammar.cut(bytes(raw))
        if over and (tokens or not raw):
            tokens.append(self._weights.eos)
        return tokens[:most]

    def _may_end(self, handle: Any) -> bool:
        eos = self._weights.eos
        return eos >= 0 and bool(self._apply(handle, np.array([eos]))[0])

    def _apply(self, handle: Any, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which tokens keep their logit."""
        asked = np.zeros(ids.size, dtype=_CANDIDATE)
        asked["id"] = ids
        pointer = asked.ctypes.data_as(ctypes.POINTER(self._c.llama_token_data))
        array = self._c.llama_token_data_array(pointer, ids.size, -1, False)
        self._c.llama_sampler_apply(handle, ctypes.byref(array))
        return asked["logit"] == 0  # type: ignore[no-any-return]
