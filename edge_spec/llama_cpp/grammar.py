"""Grammars in GBNF by llama.cpp's own code, over the tokens of a model."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from edge_spec.errors import Cancelled, SettingsError
from edge_spec.llama_cpp.library import library
from edge_spec.llama_cpp.weights import LlamaWeights
from edge_spec.sampling.gbnf import check_gbnf
from edge_spec.sampling.grammar import never

__all__ = ["LlamaGrammar"]

T = TypeVar("T")

_CANDIDATE = np.dtype([("id", "<i4"), ("logit", "<f4"), ("p", "<f4")])

_LOOKAHEAD_BYTES = 64
"""The most bytes of forced text that are looked for."""

_AT_ONCE = 2048
"""The most tokens that llama.cpp is asked about in one call: it decodes each into some 340 bytes, which the heap keeps.
It judges each token by itself, so several calls give the same answer."""

_MANY = 1024
"""For more tokens than this it pays to ask about single bytes first."""


class LlamaGrammar:
    """A grammar over a vocabulary.

    Tokens without text, such as control tokens, are never allowed; llama.cpp would take their names for text.

    Raises:
        SettingsError: the grammar has a mistake.
    """

    def __init__(self, weights: LlamaWeights, text: str) -> None:
        self._handle: Any = None
        check_gbnf(text)
        self.weights = weights
        self.c = library().c
        self.cuts: dict[bytes, int] = {}
        library().complaint()
        self._handle = self.c.llama_sampler_init_grammar(weights.vocab, text.encode("utf-8"), b"root")
        if not self._handle:
            raise SettingsError(f"llama.cpp rejects the grammar: {library().complaint()}", hint="simplify it")

    def __del__(self) -> None:
        if self._handle:
            self.c.llama_sampler_free(self._handle)

    def start(self, is_cancelled: Callable[[], bool] = never) -> _State:
        """The state before the first token.

        Raises:
            StillBusy: too many grammars of replies that were cancelled go on working.
        """
        self.weights.calls.require_room()
        # States hold their grammar; if it held one of them, neither would be freed at once.
        return _State(self, self.c.llama_sampler_clone(self._handle), is_cancelled)

    def cut(self, raw: bytes) -> list[int]:
        """Tokens for a forced text, as it was split the last time, else as the tokenizer does; none if it cannot."""
        tokens: list[int] = []
        while raw in self.cuts:
            tokens.append(self.cuts[raw])
            raw = raw[len(self.weights.token_bytes(tokens[-1])) :]
        return tokens + self._tokenized(raw)

    def _tokenized(self, raw: bytes) -> list[int]:
        text = raw.decode("utf-8", "ignore")
        token_bytes = self.weights.token_bytes
        # Some tokenizers put a space before every text, but not after a line break within it.
        for before in ("", "\n"):
            tokens = self.weights.tokenize(before + text, add_special=False) if text else []
            if before:
                line = next((n for n, token in enumerate(tokens) if token_bytes(token).endswith(b"\n")), -1)
                tokens = tokens[line + 1 :]
            if b"".join(map(token_bytes, tokens)) == text.encode():
                return tokens
        return []


class _State:
    """llama.cpp's grammar sampler after some tokens.

    A grammar whose rules can be read in many ways, all of them alike at first, makes work that doubles with every
    letter, and llama.cpp cannot be interrupted: whoever waits for it may leave.
    """

    def __init__(self, grammar: LlamaGrammar, handle: Any, is_cancelled: Callable[[], bool]) -> None:
        self._grammar = grammar
        self._is_cancelled = is_cancelled
        self._weights = grammar.weights
        self._c = grammar.c
        self._handle = handle
        self._ahead: tuple[bytes, bool] | None = None

    def __del__(self) -> None:
        self._c.llama_sampler_free(self._handle)

    def allowed(self, tokens: Sequence[int]) -> list[bool]:
        return self._leavable(lambda: self._allowed(tokens))

    def _leavable(self, work: Callable[[], T]) -> T:
        return self._weights.calls.call(work, self._is_cancelled)

    def _allowed(self, tokens: Sequence[int]) -> list[bool]:
        weights = self._weights
        ids = np.arange(len(tokens)) if tokens == range(len(tokens)) else np.asarray(tokens, dtype=np.int64)
        may = np.zeros(ids.size, dtype=np.bool_)
        known = ids < weights.n_vocab
        may[known] = weights.speaking[ids[known]]
        if ids.size > _MANY:
            # A token is not allowed if its first byte is not.
            begins = np.ones(256, dtype=np.bool_)
            begins[list(weights.single_bytes.values())] = self._apply(self._handle, self._single_bytes)
            may[may] = begins[weights.first_bytes[ids[may]]] | weights.ending[ids[may]]
        may[may] = self._apply(self._handle, ids[may])
        return may.tolist()

    @property
    def _single_bytes(self) -> npt.NDArray[np.int64]:
        return np.fromiter(self._weights.single_bytes, dtype=np.int64)

    def after(self, token: int) -> _State | None:
        if self._weights.ends(token):
            return None
        state = self._leavable(lambda: self._advanced(token))
        if self._ahead is not None:
            raw, over = self._ahead
            n = len(self._weights.token_bytes(token))
            # The rest of what was forced here is forced there.
            state._ahead = (raw[n:], over) if n < len(raw) else None
        return state

    def _advanced(self, token: int) -> _State:
        state = _State(self._grammar, self._c.llama_sampler_clone(self._handle), self._is_cancelled)
        self._c.llama_sampler_accept(state._handle, token)
        return state

    def learn(self, token: int) -> None:
        if self._ahead is not None and self._ahead[0] and not self._weights.ends(token):
            self._grammar.cuts[self._ahead[0]] = token

    def forced(self, most: int) -> list[int]:
        if self._ahead is None:
            self._ahead = self._leavable(self._look_ahead)
        raw, over = self._ahead
        tokens = self._grammar.cut(raw)
        if over and (tokens or not raw):
            tokens.append(self._weights.eos)
        return tokens[:most]

    def _look_ahead(self) -> tuple[bytes, bool]:
        """The bytes that are forced next, and whether the reply ends after them."""
        # A byte is forced if no other is allowed. Each is asked about by its token of one byte.
        known, ids = self._weights.single_bytes, self._single_bytes
        handle, raw = None, bytearray()
        try:
            while len(raw) < _LOOKAHEAD_BYTES:
                at = handle or self._handle
                following = ids[self._apply(at, ids)].tolist()
                if len(following) != 1 or self._may_end(at):
                    return bytes(raw), not following and self._may_end(at)
                handle = handle or self._c.llama_sampler_clone(self._handle)
                self._c.llama_sampler_accept(handle, following[0])
                raw.append(known[following[0]])
            return bytes(raw), False
        finally:
            if handle:
                self._c.llama_sampler_free(handle)

    def _may_end(self, handle: Any) -> bool:
        eos = self._weights.eos
        return eos >= 0 and bool(self._apply(handle, np.array([eos]))[0])

    def _apply(self, handle: Any, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which tokens the grammar allows: those that keep their logit."""
        may = np.empty(ids.size, dtype=np.bool_)
        for at in range(0, ids.size, _AT_ONCE):
            if self._is_cancelled():
                raise Cancelled
            some = ids[at : at + _AT_ONCE]
            asked = np.zeros(some.size, dtype=_CANDIDATE)
            asked["id"] = some
            pointer = asked.ctypes.data_as(ctypes.POINTER(self._c.llama_token_data))
            array = self._c.llama_token_data_array(pointer, some.size, -1, False)
            self._c.llama_sampler_apply(handle, ctypes.byref(array))
            may[at : at + _AT_ONCE] = asked["logit"] == 0
        return may
