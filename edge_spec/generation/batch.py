"""Several texts that one model writes together: each decode gives every one of them a token."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter

from edge_spec.errors import BudgetExceeded, GrammarDeadEnd, PromptError, PromptTooLong, StateError
from edge_spec.generation.answers import Answer
from edge_spec.generation.writer import TokenWriter
from edge_spec.memory import Ledger
from edge_spec.speculation.language_model import LanguageModel
from edge_spec.speculation.round import Round
from edge_spec.speculation.texts import Texts, TextsModel
from edge_spec.tokens.tokenizer import Vocabulary

__all__ = ["OF_ONE_TEXT", "Batch", "Piece"]

OF_ONE_TEXT = (GrammarDeadEnd, PromptError, StateError)
"""Errors that end one text and leave the others alone."""

Piece = tuple[Answer, str]

_OWNER, _LINE = "texts", "caches"


@dataclass(slots=True)
class _Live:
    """A text in a slot."""

    answer: Answer
    writer: TokenWriter
    tokens: list[int]


class Batch:
    """Writes answers in the slots of one cache; those that end make room for those that wait.

    Nothing is drafted here: where several texts share a decode, its rows are taken by them. A token is drawn as in a
    single reply, from a row with the same bits.

    Attributes:
        model: what computes.
    """

    def __init__(
        self,
        model: TextsModel,
        texts: Texts,
        vocabulary: Vocabulary,
        ledger: Ledger,
        answers: Sequence[Answer],
    ) -> None:
        self.model = model
        self._texts = texts
        self._vocabulary = vocabulary
        self._ledger = ledger
        self._waiting = deque(answers)
        self._live: dict[int, _Live] = {}
        # The prompts that were read into the slots; their cells stay when a text ends.
        self._prompts: list[Sequence[int]] = [()] * texts.n_slots
        self._writers: dict[Answer, TokenWriter] = {}

    @classmethod
    def open(
        cls,
        model: LanguageModel,
        vocabulary: Vocabulary,
        ledger: Ledger,
        answers: Sequence[Answer],
    ) -> Batch | None:
        """As many slots as there are answers, one decode can advance, and the memory budget has room for.

        Returns:
            None if those are fewer than two: they are then written one after the other.
        """
        if not isinstance(model, TextsModel):
            return None
        n_tokens = _most_tokens(answers, model.n_ctx)
        n_slots = min(len(answers), model.most_texts)
        if ledger.left_bytes is not None:
            n_slots = min(n_slots, ledger.left_bytes // max(1, model.texts_bytes(1, n_tokens)))
        if n_slots < 2:
            return None
        n_bytes = model.texts_bytes(n_slots, n_tokens)
        with suppress(BudgetExceeded):
            ledger.claim(_OWNER, _LINE, n_bytes)
            try:
                texts = model.texts(n_slots, n_tokens)
            except BaseException as error:
                ledger.release(_OWNER)
                if isinstance(error, MemoryError):
                    return None
                raise
            ledger.measure(_OWNER, _LINE, n_bytes)
            return cls(model, texts, vocabulary, ledger, answers)
        return None

    def round(self) -> list[Piece]:
        """Let waiting texts in, and give every text a token; returns the pieces of text that became certain."""
        pieces = list(self._end_some())
        self._admit()
        live = {slot: text for slot, text in self._live.items() if text.answer.finish_reason is None}
        if not live:
            return pieces
        start = perf_counter()
        rows = self._texts.decode({slot: text.tokens[-1] for slot, text in live.items()})
        verify_s = perf_counter() - start
        rounds: list[tuple[_Live, Round]] = []
        for row, text in zip(rows, live.values(), strict=True):
            begun = perf_counter()
            try:
                token = text.writer.sampler.pick(row, text.tokens)
            except OF_ONE_TEXT as error:
                text.answer.end("error", error)
                continue
            text.tokens.append(token)
            if not text.writer.take(token) and len(text.tokens) >= self.model.n_ctx:
                text.answer.end("context")
            done = Round((token,), 0, (), 1, 0.0, verify_s, perf_counter() - begun)
            text.writer.accepted(text.tokens, done, "off")
            rounds.append((text, done))
        spent = perf_counter() - start
        for text, done in rounds:
            text.writer.statistics.rest_s += spent - verify_s - done.sample_s
        for slot, text in live.items():
            pieces += self._pieces_of(slot, text)
        return pieces

    def end(self, reason: str, error: Exception | None = None) -> list[Piece]:
        """End every text; returns what had been held back of them."""
        for answer in self._waiting:
            answer.end(reason, error)
        self._waiting.clear()
        pieces: list[Piece] = []
        for slot, text in list(self._live.items()):
            text.answer.end(reason, error)
            pieces += self._pieces_of(slot, text)
        return pieces

    def close(self) -> None:
        """Free the cache; texts that have not ended can be continued elsewhere. Safe to call twice."""
        self._texts.close()
        self._ledger.release(_OWNER)
        for answer, writer in self._writers.items():
            if answer.finish_reason is None:
                answer.continue_after(writer.sampler.state())
        self._writers.clear()
        self._live.clear()

    def _end_some(self) -> Iterator[Piece]:
        """End texts that were cancelled."""
        for slot, text in list(self._live.items()):
            if text.answer.is_cancelled:
                text.answer.end("cancelled")
                yield from self._pieces_of(slot, text)

    def _pieces_of(self, slot: int, text: _Live) -> list[Piece]:
        """Return what a text has to hand out; if it has ended, its slot is free."""
        if text.answer.finish_reason is not None:
            text.writer.flush()
            self._live.pop(slot, None)
        piece = "".join(text.writer.ready)
        text.writer.ready.clear()
        return [(text.answer, piece)] if piece else []

    def _admit(self) -> None:
        """Read the prompts of waiting texts into free slots."""
        free = [slot for slot in range(self._texts.n_slots) if slot not in self._live]
        while free and self._waiting:
            answer = self._waiting.popleft()
            if answer.is_cancelled:
                answer.end("cancelled")
                continue
            try:
                self._live[free[0]] = self._begun(answer)
            except OF_ONE_TEXT as error:
                answer.end("error", error)
                continue
            self._read(free.pop(0))

    def _begun(self, answer: Answer) -> _Live:
        tokens = [*answer.prompt, *answer.request.written]
        if len(tokens) >= self.model.n_ctx:
            raise PromptTooLong(n_prompt=len(tokens), n_ctx=self.model.n_ctx)
        writer = TokenWriter(self._vocabulary, answer.request, self.model.n_ctx)
        self._writers[answer] = writer
        answer.write_with(writer)
        return _Live(answer, writer, tokens)

    def _read(self, slot: int) -> None:
        """Read all tokens of a text but the last one, which the next decode begins with."""
        start = perf_counter()
        text = self._live[slot]
        prompt = text.answer.prompt[:-1]
        # Where another text was read from the same prompt, its cells are these.
        text.answer.request.options.on_progress("reading", 0, len(prompt))
        source = next((other for other, read in enumerate(self._prompts) if prompt and read == prompt), None)
        if source is None:
            self._prompts[slot] = ()
            self._texts.rollback(slot, 0)
            self._texts.read(slot, prompt)
        else:
            self._texts.copy(source, slot, len(prompt))
        self._prompts[slot] = prompt
        self._texts.read(slot, text.tokens[len(prompt) : -1])
        text.answer.request.options.on_progress("reading", len(prompt), len(prompt))
        text.writer.statistics.prefill_s += perf_counter() - start


def _most_tokens(answers: Sequence[Answer], n_ctx: int) -> int:
    """Return the most tokens that one of some texts can come to have.

    Those that do not fit the context are refused anyway.
    """
    most = [
        len(answer.prompt) + len(answer.request.written) + (answer.request.options.max_tokens or n_ctx)
        for answer in answers
    ]
    return min(n_ctx, max(most))
