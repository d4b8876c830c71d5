"""Grammars by llguidance, over the tokens of any tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from edge_spec.errors import SettingsError
from edge_spec.sampling.lark import Lark
from edge_spec.tokens.tokenizer import FileTokenizer

__all__ = ["GuidedGrammar", "GuidedVocabulary", "check_grammar"]

_LIMITS = LLParserLimits(
    step_lexer_fuel=100_000,
    step_max_items=500_000,
    max_lexer_states=20_000,
    max_grammar_size=100_000,
    verbose_errors=False,
)
"""Limits of llguidance: 25 ms for a mask of a grammar without terminals over 250,000 tokens, and 40 MB of states."""

_SLICES = [r'[^"\\\x00-\x1F\x7F]{1,10}']
"""Tokens that match are checked together where any such text may come. More of these kinds would save a tenth of a
millisecond and take twice the memory (152,000 tokens: 54 MiB instead of 25)."""

_LOOKAHEAD_BYTES = 64
"""The most bytes of forced text to look for."""

_FEW = 64
"""Up to this many tokens, checking each takes less time than computing the whole mask."""


def check_grammar(grammar: Lark) -> None:
    """Raise if llguidance cannot use a grammar with any vocabulary.

    Raises:
        SettingsError: with its reason.
    """
    problem = LLMatcher.validate_grammar(grammar, None, limits=_LIMITS)
    if problem and not problem.startswith("WARNING"):
        _refuse(grammar, problem)


def _refuse(grammar: Lark, problem: str) -> None:
    reason, *more = problem.splitlines()
    if reason.endswith("regex parse error:") and len(more) > 2:
        # A line with the pattern, one that points into it, and what is wrong there.
        reason = f"{reason} {more[0].strip()}: {more[2].strip().removeprefix('error: ')}"
    if reason.startswith("NoExtension"):
        reason = "it allows nothing"
    # Drop the position: it refers to a text that the user has not written.
    reason = reason.split("failed to compile JSON schema: ")[-1].split(" (at ")[0]
    raise SettingsError(f"cannot be kept: {reason}", argument=grammar.argument, hint="simplify it")


class _Tokens(TokenizerWrapper):
    """The bytes of all tokens, as llguidance asks for them."""

    is_tokenizer_wrapper = True
    bos_token_id = None
    special_token_ids = ()

    def __init__(self, tokenizer: FileTokenizer, ends: Sequence[int]) -> None:
        self.tokens = [tokenizer.token_bytes(token) for token in range(tokenizer.n_vocab)]
        for token, raw in enumerate(self.tokens):
            # llguidance marks special tokens with a byte that UTF-8 never has.
            if b"\xff" in raw:
                self.tokens[token] = b""
        for token in ends:
            self.tokens[token] = b""
        if not ends:
            # llguidance needs an end token; this one cannot be written.
            self.tokens.append(b"")
        self.eos_token_id = ends[0] if ends else len(self.tokens) - 1

    def __call__(self, text: str) -> list[int]:
        """Return no tokens: llguidance must not tokenize text itself."""
        return []


class GuidedVocabulary:
    """The tokens of a tokenizer, prepared for any number of grammars.

    Tokens without text, such as control tokens, are never allowed, but those that end a reply where it may end.
    """

    def __init__(self, tokenizer: FileTokenizer) -> None:
        self.tokenizer = tokenizer
        self.n_vocab = tokenizer.n_vocab
        self.ends = tuple(token for token in range(tokenizer.n_vocab) if tokenizer.ends(token))
        self.end = tokenizer.eos if tokenizer.eos in self.ends else next(iter(self.ends), -1)
        tokens = _Tokens(tokenizer, self.ends)
        self.tokens = LLTokenizer(tokens, eos_token=list(self.ends) or None, slices=_SLICES)
        tokens.tokens = []

    def cut(self, raw: bytes) -> list[int]:
        """Return tokens for a text that may end within a character; none if the tokenizer cannot write it."""
        text = raw.decode("utf-8", "ignore")
        token_bytes = self.tokenizer.token_bytes
        # Some tokenizers put a space before every text, but not after a line break within it.
        for before in ("", "\n"):
            tokens = self.tokenizer.tokenize(before + text, add_special=False) if text else []
            if before:
                line = next((n for n, token in enumerate(tokens) if token_bytes(token).endswith(b"\n")), -1)
                tokens = tokens[line + 1 :]
            if b"".join(map(token_bytes, tokens)) == text.encode():
                return tokens
        return []


class GuidedGrammar:
    """A grammar over a vocabulary. Usable from any thread.

    Raises:
        SettingsError: the grammar has a mistake, or is too large.
    """

    def __init__(self, vocabulary: GuidedVocabulary, grammar: Lark) -> None:
        self.vocabulary = vocabulary
        self.cuts: dict[bytes, int] = {}
        self._matcher = LLMatcher(vocabulary.tokens, grammar, log_level=0, limits=_LIMITS)
        if not self._matcher.is_error():
            self._matcher.compute_bitmask()
        if self._matcher.is_error():
            _refuse(grammar, self._matcher.get_error())

    def start(self) -> _State:
        """Return the state before the first token."""
        return _State(_Reply(self), None, -1)

    def matcher(self) -> LLMatcher:
        """Return a new matcher."""
        return self._matcher.deep_copy()

    def cut(self, raw: bytes) -> list[int]:
        """Return tokens for a forced text, as it was split the last time, else as the tokenizer does."""
        tokens: list[int] = []
        while raw in self.cuts:
            tokens.append(self.cuts[raw])
            raw = raw[len(self.vocabulary.tokenizer.token_bytes(tokens[-1])) :]
        return tokens + self.vocabulary.cut(raw)


class _Reply:
    """The matcher of a reply, moved to the position in question.

    Positions refer to it, so it refers to them by number only.
    """

    def __init__(self, grammar: GuidedGrammar) -> None:
        self.grammar = grammar
        self.numbers = count()
        self._matcher: LLMatcher | None = None
        self._path: list[int] = []

    def at(self, state: _State) -> LLMatcher | None:
        """Return the matcher after the tokens of a state; None if they are more than it can follow."""
        way = []
        while state.above is not None and self._path[state.index : state.index + 1] != [state.number]:
            way.append(state)
            state = state.above
        if self._matcher is None:
            self._matcher, self._path = self.grammar.matcher(), [state.number]
        n_back = len(self._path) - 1 - state.index
        if n_back:
            self._matcher.rollback(n_back)
            del self._path[-n_back:]
        for each in reversed(way):
            self._matcher.consume_token(each.token)
            self._path.append(each.number)
        return self.sound()

    def sound(self) -> LLMatcher | None:
        """Return the matcher; drop it and return None if the last call exceeded its limits."""
        if self._matcher is not None and self._matcher.is_error():
            self._matcher, self._path = None, []
        return self._matcher


class _State:
    """A position in a reply: the tokens before it. What is too much work to follow allows nothing."""

    __slots__ = ("__weakref__", "_ahead", "_reply", "above", "index", "number", "token")

    def __init__(self, reply: _Reply, above: _State | None, token: int) -> None:
        self._reply = reply
        self.above = above
        self.token = token
        self.index: int = above.index + 1 if above is not None else 0
        self.number = next(reply.numbers)
        self._ahead: bytes | None = None

    def allowed(self, tokens: Sequence[int]) -> Sequence[bool] | npt.NDArray[np.bool_]:
        if len(tokens) <= _FEW:
            return self._few_allowed(tokens)
        mask = self._all_allowed()
        may = np.zeros(len(tokens), dtype=np.bool_)
        if tokens == range(len(tokens)):
            may[: mask.size] = mask[: may.size]
            return may
        ids = np.asarray(tokens)
        known = ids < mask.size
        may[known] = mask[ids[known]]
        return may

    def _few_allowed(self, tokens: Sequence[int]) -> list[bool]:
        matcher, vocabulary = self._reply.at(self), self._reply.grammar.vocabulary
        may = [False] * len(tokens)
        for place, token in enumerate(tokens):
            if matcher is None:
                break
            if token in vocabulary.ends:
                may[place] = matcher.is_accepting()
            elif token < vocabulary.n_vocab:
                may[place] = matcher.validate_tokens([token]) == 1
                matcher = self._reply.sound()
        return may

    def _all_allowed(self) -> npt.NDArray[np.bool_]:
        n_vocab = self._reply.grammar.vocabulary.n_vocab
        matcher = self._reply.at(self)
        bits = matcher.compute_bitmask() if matcher is not None else b""
        if self._reply.sound() is None:
            return np.zeros(n_vocab, dtype=np.bool_)
        return np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")[:n_vocab].view(np.bool_)

    def after(self, token: int) -> _State | None:
        vocabulary = self._reply.grammar.vocabulary
        if token in vocabulary.ends:
            return None
        state = _State(self._reply, self, token)
        n = len(vocabulary.tokenizer.token_bytes(token))
        if self._ahead is not None and n < len(self._ahead):
            # The rest of the forced text is forced at the next position.
            state._ahead = self._ahead[n:]
        return state

    def learn(self, token: int) -> None:
        if self._ahead and token not in self._reply.grammar.vocabulary.ends:
            self._reply.grammar.cuts[self._ahead] = token

    def forced(self, most: int) -> list[int]:
        grammar = self._reply.grammar
        if self._ahead is None:
            matcher = self._reply.at(self)
            self._ahead = matcher.compute_ff_bytes()[:_LOOKAHEAD_BYTES] if matcher is not None else b""
        tokens = grammar.cut(self._ahead)[:most]
        if (tokens or not self._ahead) and len(tokens) < most:
            end = self
            for token in tokens:
                end = _State(self._reply, end, token)
            if end._only_ends():
                tokens.append(grammar.vocabulary.end)
        return tokens

    def _only_ends(self) -> bool:
        """Return whether the reply has to end here."""
        ends = list(self._reply.grammar.vocabulary.ends)
        mask = self._all_allowed()
        return bool(mask[ends].any()) and not np.delete(mask, ends).any()
