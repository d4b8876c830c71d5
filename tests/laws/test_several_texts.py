"""Laws of several replies at once, on table models: each is what it is alone, whatever becomes of the others."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from speculator_replies import request_of

from edge_spec.engines.table import TableModel, TableTexts, random_table
from edge_spec.errors import BackendError, BudgetExceeded, Closed, GrammarDeadEnd, PromptTooLong, UnfinishedReply
from edge_spec.generation.answers import Answer
from edge_spec.generation.context import ModelAccess
from edge_spec.generation.replies import Replies
from edge_spec.generation.reply import Reply
from edge_spec.generation.request import ReplyRequest
from edge_spec.generation.session_cache import SessionCache
from edge_spec.memory import Ledger
from edge_spec.sampling import SamplerSettings
from edge_spec.speculation.drafters.ngram import NgramDrafter
from edge_spec.speculation.drafters.plain import NoDrafter
from edge_spec.speculation.loop import Speculator

N_VOCAB, N_CTX = 6, 48


class World:
    """A table model, and requests to it.

    Args:
        most: how many texts a decode can advance; 1 for a model that knows of one text only.
        budget: bytes for caches of several texts; each token takes one.
    """

    def __init__(
        self, letters: Any, requests: Sequence[ReplyRequest], *, most: int = 4, budget: int | None = None
    ) -> None:
        self.requests = list(requests)
        self.letters = letters
        self.table = random_table(N_VOCAB, order=2, seed=5)
        self.ledger = Ledger(budget)
        self.model = self.new_model(most)
        self.access = ModelAccess(Speculator(self.model, NgramDrafter()), letters, SessionCache(self.ledger))

    def new_model(self, most: int) -> TableModel:
        return TableModel(
            self.table, n_ctx=N_CTX, max_rows=max(most, 2), widths=tuple(range(1, 65)) if most > 1 else ()
        )

    def replies(self) -> Replies:
        answers = [Answer(index, request.settings, request) for index, request in enumerate(self.requests)]
        return Replies(self.access, answers, lambda: 3)

    def alone(self, request: ReplyRequest) -> tuple[Any, ...]:
        access = ModelAccess(Speculator(self.new_model(4), NoDrafter()), self.letters)
        try:
            reply = Reply(access, request, lambda: 0)
        except PromptTooLong as error:
            return [], "", "error", type(error)
        try:
            text = reply.read()
        except GrammarDeadEnd as error:
            # What had been held back is handed out all the same.
            return reply.token_ids, reply.text + "".join(reply), "error", type(error)
        return reply.token_ids, text, reply.finish_reason, type(None)


def outcome(answer: Answer) -> tuple[Any, ...]:
    return answer.token_ids, answer.text, answer.finish_reason, type(answer.error)


def request(prompt: Sequence[int] = (1, 2), *, attempt: int = 0, seed: int = 3, **asked: Any) -> ReplyRequest:
    sampling = SamplerSettings(seed=seed, attempt=attempt, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
    return request_of(list(prompt), sampling, **asked)


class DeadEnd:
    """A grammar that allows nothing after a few tokens."""

    def __init__(self, left: int) -> None:
        self._left = left

    def start(self) -> DeadEnd:
        return self

    def allowed(self, tokens: Sequence[int]) -> list[bool]:
        return [self._left > 0] * len(tokens)

    def after(self, token: int) -> DeadEnd:
        return DeadEnd(self._left - 1)

    def forced(self, most: int) -> list[int]:
        return []

    def learn(self, token: int) -> None:
        """There is one way to cut tokens."""


@st.composite
def worlds(draw: st.DrawFn, letters: Any, letter_grammar: Any) -> World:
    end = draw(st.integers(-1, N_VOCAB - 1))
    requests = []
    for _ in range(draw(st.integers(1, 9))):
        size = draw(st.sampled_from([1, 2, 3, 8, 30, N_CTX - 1, N_CTX]))
        prompt = draw(st.sampled_from([[1] * size, [1, 2, 3, 4, 5] * 10]))[:size]
        constraint = draw(st.integers(0, 5))
        grammar: Any = {1: letter_grammar(constraint, N_VOCAB, end), 2: DeadEnd(4)}.get(constraint)
        sampling = {"temperature": draw(st.sampled_from([0.0, 0.8, 1.5]))}
        sampling |= draw(st.sampled_from([{}, {}, {"mirostat": 2}, {"repeat_penalty": 1.3, "penalty_window": 5}]))
        requests.append(
            request_of(
                prompt,
                SamplerSettings(seed=draw(st.integers(0, 3)), attempt=draw(st.integers(0, 2)), **sampling),
                max_tokens=draw(st.sampled_from([None, 1, 5, 30])),
                stop=draw(st.sampled_from([(), ("bab",), ("üa", "bbb")])),
                grammar=grammar,
            )
        )
    budget = draw(st.sampled_from([None, None, 0, 100, 200]))
    return World(letters(end), requests, most=draw(st.sampled_from([1, 2, 3, 4, 16])), budget=budget)


@given(data=st.data())
@settings(max_examples=150)
def test_each_is_what_it_is_alone(letters: Any, letter_grammar: Any, data: st.DataObject) -> None:
    world = data.draw(worlds(letters, letter_grammar))
    replies = world.replies()
    pieces: list[list[str]] = [[] for _ in replies.texts]
    complete: dict[int, str] = {}
    for index, piece in replies:
        assert piece
        pieces[index].append(piece)
        complete |= {each.index: each.text for each in replies.answers if each.is_complete}
    assert all(replies[index].text == text for index, text in complete.items())
    assert all(answer.is_complete for answer in replies.answers)
    for index, asked in enumerate(world.requests):
        assert outcome(replies[index]) == world.alone(asked)
        assert "".join(pieces[index]) == replies[index].text
    assert world.ledger.held_bytes == 0


def test_a_cancelled_one_leaves_the_others_alone(letters: Any, letter_grammar: Any) -> None:
    n_cancelled: Counter[bool] = Counter()

    @given(data=st.data())
    @settings(max_examples=80)
    def play(data: st.DataObject) -> None:
        world = data.draw(worlds(letters, letter_grammar))
        replies = world.replies()
        cancelled = data.draw(st.integers(0, len(replies) - 1))
        after = data.draw(st.integers(0, 20))
        for n, _ in enumerate(replies):
            if n == after:
                replies.cancel(cancelled)
        for index, asked in enumerate(world.requests):
            tokens, text, reason, error = world.alone(asked)
            is_cancelled = replies[index].finish_reason == "cancelled"
            n_cancelled[is_cancelled] += 1
            if is_cancelled:
                assert index == cancelled
                assert tokens[: len(replies[index].token_ids)] == replies[index].token_ids
                assert text.startswith(replies[index].text) or reason == "stop"
            else:
                assert outcome(replies[index]) == (tokens, text, reason, error)

    play()
    assert n_cancelled[True] > 20 and n_cancelled[False] > 100


@given(data=st.data())
@settings(max_examples=80)
def test_they_continue_with_another_target(letters: Any, letter_grammar: Any, data: st.DataObject) -> None:
    """Memory became scarce and free again: the models that continue have the same rows."""
    world = data.draw(worlds(letters, letter_grammar))
    replies = world.replies()
    for _ in replies:
        if data.draw(st.integers(0, 9)) == 0:
            world.access.speculator.change_target(world.new_model(data.draw(st.sampled_from([1, 2, 8]))))
    for index, asked in enumerate(world.requests):
        assert outcome(replies[index]) == world.alone(asked)


def test_as_many_as_a_decode_has_rows_are_written_at_once(letters: Any) -> None:
    world = World(letters(), [request(attempt=n, max_tokens=6) for n in range(7)], most=3)
    decodes: list[set[int]] = []
    texts = world.model.texts

    def watched(n_slots: int, n_tokens: int) -> Any:
        found = texts(n_slots, n_tokens)
        decode = found.decode
        found.decode = lambda tokens: (decodes.append(set(tokens)), decode(tokens))[1]  # type: ignore[method-assign]
        return found

    world.model.texts = watched  # type: ignore[method-assign]
    world.replies().read()
    assert max(map(len, decodes)) == 3
    assert sum(map(len, decodes)) == 7 * 6


def test_one_prompt_is_read_once(letters: Any) -> None:
    prompt = [1, 2, 3] * 5
    world = World(letters(), [request(prompt, attempt=n, max_tokens=3) for n in range(8)], most=3)
    read: list[int] = []
    texts = world.model.texts

    def watched(n_slots: int, n_tokens: int) -> Any:
        found = texts(n_slots, n_tokens)
        whole = found.read
        found.read = lambda slot, tokens: (read.append(len(tokens)), whole(slot, tokens))[1]  # type: ignore[method-assign]
        return found

    world.model.texts = watched  # type: ignore[method-assign]
    world.replies().read()
    assert sum(read) == len(prompt) - 1


def test_the_ledger_has_their_caches_while_they_are_written(letters: Any) -> None:
    world = World(letters(), [request(attempt=n, max_tokens=6) for n in range(4)], budget=1000)
    replies = world.replies()
    next(replies)
    assert [(line.owner, line.name, line.predicted_bytes) for line in world.ledger] == [("texts", "caches", 4 * 8)]
    replies.close()
    assert not list(world.ledger)


def test_a_budget_with_room_for_two_gets_two(letters: Any) -> None:
    world = World(letters(), [request(attempt=n, max_tokens=6) for n in range(4)], budget=20)
    replies = world.replies()
    next(replies)
    assert world.ledger.held_bytes == 16
    replies.read()
    assert [outcome(replies[n]) for n in range(4)] == [world.alone(each) for each in world.requests]


def test_a_reply_waits_for_its_turn_and_gets_it(letters: Any) -> None:
    world = World(letters(), [request(attempt=n) for n in range(3)])
    replies = world.replies()
    next(replies)
    other = Reply(world.access, request(), lambda: 0)
    with pytest.raises(UnfinishedReply, match="not finished"):
        next(other)
    replies.close()
    assert other.read()
    assert [replies[n].finish_reason for n in range(3)] == ["cancelled"] * 3


def test_they_can_begin_after_another_reply_has_ended(letters: Any) -> None:
    world = World(letters(), [request(attempt=n, max_tokens=5) for n in range(3)])
    other = Reply(world.access, request(), lambda: 0)
    next(other)
    replies = world.replies()
    with pytest.raises(UnfinishedReply, match="not finished"):
        next(replies)
    other.close()
    replies.read()
    assert [outcome(replies[n]) for n in range(3)] == [world.alone(each) for each in world.requests]


def test_dropped_ones_give_their_turn_back(letters: Any) -> None:
    world = World(letters(), [request(attempt=n) for n in range(3)])
    replies = world.replies()
    next(replies)
    del replies
    assert Reply(world.access, request(max_tokens=3), lambda: 0).read()
    assert world.ledger.held_bytes == 0


@pytest.mark.parametrize("most", [1, 4])
def test_a_cancel_from_another_thread_ends_all(letters: Any, most: int) -> None:
    world = World(letters(), [request(attempt=n) for n in range(3)], most=most)
    replies = world.replies()
    next(replies)
    thread = threading.Thread(target=replies.cancel)
    thread.start()
    thread.join()
    replies.read()
    assert [replies[n].finish_reason for n in range(3)] == ["cancelled"] * 3
    assert Reply(world.access, request(max_tokens=3), lambda: 0).read()


@pytest.mark.parametrize("most", [1, 4])
def test_an_error_of_the_engine_ends_all_and_is_raised(letters: Any, most: int, monkeypatch: Any) -> None:
    world = World(letters(), [request(attempt=n) for n in range(3)], most=most)
    replies = world.replies()
    next(replies)

    def fails(self: Any, asked: Any) -> Any:
        raise BackendError("out of order")

    for kind in (TableModel, TableTexts):
        monkeypatch.setattr(kind, "decode", fails)
    with pytest.raises(BackendError):
        replies.read()
    assert {replies[n].finish_reason for n in range(3)} == {"error"}
    assert world.ledger.held_bytes == 0


def test_a_closed_model_is_an_error(letters: Any) -> None:
    world = World(letters(), [request(attempt=n) for n in range(3)])
    replies = world.replies()
    world.access.lock.close()
    with pytest.raises(Closed):
        next(replies)


def test_statistics_count_for_each(letters: Any) -> None:
    world = World(letters(), [request(attempt=n, max_tokens=4 + n) for n in range(3)])
    replies = world.replies()
    replies.read()
    for n in range(3):
        statistics = replies[n].statistics
        assert (statistics.tokens, statistics.rounds, statistics.prompt_tokens) == (4 + n, 4 + n, 2)
        assert statistics.tokens_per_s > 0


def test_memory_that_is_claimed_meanwhile_is_no_error(letters: Any, monkeypatch: Any) -> None:
    world = World(letters(), [request(attempt=n, max_tokens=4) for n in range(3)], budget=1000)

    def refuses(*_: Any) -> None:
        raise BudgetExceeded("caches", needed_bytes=2, allowed_bytes=1, hint="ask for less")

    monkeypatch.setattr(world.ledger, "claim", refuses)
    replies = world.replies()
    replies.read()
    assert [outcome(replies[n]) for n in range(3)] == [world.alone(each) for each in world.requests]


def test_the_attempt_makes_the_difference(letters: Any) -> None:
    """The laws above can fail: answers with other attempts are other answers."""
    world = World(letters(), [request(max_tokens=30), request(attempt=1, max_tokens=30)])
    replies = world.replies()
    replies.read()
    assert not np.array_equal(replies[0].token_ids, replies[1].token_ids)
    changed = replace(world.requests[0], settings=replace(world.requests[0].settings, attempt=1))
    assert world.alone(changed) == outcome(replies[1])
