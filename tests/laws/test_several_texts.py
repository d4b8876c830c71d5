"""Laws of several replies at once, on table models: each is what it is alone, whatever becomes of the others."""

from __future__ import annotations

import gc
import random
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any
from weakref import ref

import numpy as np
import pytest
from clock import Clock
from hypothesis import given, settings
from hypothesis import strategies as st
from random_choices import RandomChoices
from speculator_replies import request_of

from edge_spec.errors import BackendError, Closed, GrammarDeadEnd, PromptTooLong
from edge_spec.generation.prefix_cache import PrefixCache
from edge_spec.generation.replies import Asked, Replies
from edge_spec.generation.reply import Reply
from edge_spec.generation.request import ReplyRequest
from edge_spec.generation.scheduler import Scheduler
from edge_spec.memory import Ledger
from edge_spec.sampling import SamplerSettings
from edge_spec.speculation.chooser import Chooser
from edge_spec.speculation.drafters.base import Drafter
from edge_spec.speculation.drafters.hierarchy import HierarchyDrafter
from edge_spec.speculation.drafters.leaf import LeafDrafter
from edge_spec.speculation.drafters.model import ModelDrafter
from edge_spec.speculation.drafters.ngram import NgramDrafter
from edge_spec.speculation.drafters.plain import NoDrafter
from edge_spec.speculation.loop import Slot
from edge_spec.speculation.round import Round
from edge_spec.speculation.target import Target
from edge_spec.speculation.tree import Tree
from edge_spec.testing import TableModel, random_table
from edge_spec.testing.table_model import TablePool

N_VOCAB, N_CTX = 6, 48


class World:
    """A table model, and requests to it.

    Args:
        most: how many texts a decode can advance; 1 for a model that knows of one text only.
        budget: bytes for caches of several texts; each token takes one.
        drafters: makes what drafts for each of the texts.
    """

    def __init__(
        self,
        letters: Any,
        requests: Sequence[ReplyRequest],
        *,
        most: int = 4,
        budget: int | None = None,
        drafters: Callable[[], Drafter] = NgramDrafter,
    ) -> None:
        self.requests = list(requests)
        self.letters = letters
        self.table = random_table(N_VOCAB, order=2, seed=5)
        self.ledger = Ledger(budget)
        self.model = self.new_model(most)
        target = Target(Slot(self.model.pool.path(), drafters()), lambda path: drafters())
        self.scheduler = Scheduler(target, letters, PrefixCache(target, self.ledger))

    def new_model(self, most: int) -> TableModel:
        return TableModel(
            self.table, n_ctx=N_CTX, max_rows=max(most, 2), widths=tuple(range(1, 65)) if most > 1 else ()
        )

    def replies(self) -> Replies:
        asked = [Asked(settings=each.settings, request=each) for each in self.requests]
        return Replies(self.scheduler, asked, lambda: 3)

    def alone(self, request: ReplyRequest) -> tuple[Any, ...]:
        scheduler = Scheduler(Target(Slot(self.new_model(4), NoDrafter())), self.letters)
        try:
            reply = Reply(scheduler, request, lambda: 0)
        except PromptTooLong as error:
            return [], "", "error", type(error)
        try:
            text = reply.read()
        except GrammarDeadEnd as error:
            # What had been held back is handed out all the same.
            while next(reply, None) is not None:
                pass
            return reply.token_ids, reply.text, "error", type(error)
        return reply.token_ids, text, reply.finish_reason, type(None)


def outcome(answer: Reply) -> tuple[Any, ...]:
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


class Repeat(Drafter):
    """A stranger's: guesses that the last token comes again, and again."""

    def draft(self, limit: int) -> Tree:
        return Tree.sequence(self.text.tokens[-1:] * limit)


class Careless(Drafter):
    """A stranger's: guesses more than it is asked for, in side branches, of tokens that there are not."""

    name = "careless"

    def draft(self, limit: int) -> Tree:
        n, place = limit + 3, len(self.text)
        return Tree(tuple(place % (N_VOCAB + 1) for place in range(place, place + n)), (-1, -1, *range(n - 2)))


def choosers(clock: Callable[[], float] = perf_counter) -> Callable[[], Drafter]:
    """Return what makes choosers that learn together."""
    first = Chooser([NgramDrafter(), Careless(), Repeat()], seconds={1: 1.0, 64: 1.1}, clock=clock)

    def another() -> Drafter:
        chooser = Chooser([NgramDrafter(), Careless(), Repeat()], clock=clock)
        chooser.join(first)
        return chooser

    return another


def models(
    kind: str, n_cells: int | None = None, clock: Callable[[], float] = perf_counter, *, in_company: bool = True
) -> Callable[[], Drafter]:
    """Return what makes drafters whose models are paths of one pool each, with so many cells."""
    tables = [random_table(N_VOCAB, order=2, seed=seed) for seed in (5, 6)]
    given: dict[str, Any] = {"n_ctx": N_CTX, "n_cells": n_cells, "max_rows": 8, "in_company": in_company}
    pools = [TableModel(table, **given).pool for table in tables]
    known: dict[str, Chooser] = {}

    def choice(name: str, *drafters: Drafter) -> Chooser:
        chooser = Chooser([*drafters, NgramDrafter()], seconds={1: 1.0, 64: 1.1}, clock=clock)
        chooser.join(known.setdefault(name, chooser))
        return chooser

    def drafter() -> Drafter:
        small = ModelDrafter(pools[0].path(), **{"tree": {"width": 3, "depth": 3}}.get(kind, {"width": 2, "beam": 1}))
        if kind in ("sequence", "tree"):
            return small
        if kind == "auto":
            return choice("text", small)
        hierarchy = HierarchyDrafter(choice("leaf", small) if kind == "nested" else small, pools[1].path(), width=2)
        return choice("text", hierarchy, LeafDrafter(hierarchy, small)) if kind == "nested" else hierarchy

    return drafter


KINDS = ("sequence", "tree", "hierarchy", "auto", "nested")

DRAFTERS: Mapping[str, Callable[[Callable[[], float]], Callable[[], Drafter]]] = {
    **{f"{kind} {n_cells}": partial(models, kind, n_cells) for kind in KINDS for n_cells in (None, 16, 64, 1000)},
    **{f"{kind} alone": partial(models, kind, None, in_company=False) for kind in KINDS},
    "ngram": lambda clock: NgramDrafter,
    "auto": choosers,
    "random": lambda clock: lambda: RandomChoices([NgramDrafter(), Careless()], 5),
    "repeat": lambda clock: Repeat,
    "careless": lambda clock: Careless,
}
"""What makes drafters for the texts of a world, of the clock by which their choosers go."""


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
    drafters = DRAFTERS[draw(st.sampled_from(sorted(DRAFTERS)))](perf_counter)
    most = draw(st.sampled_from([1, 2, 3, 4, 16]))
    return World(letters(end), requests, most=most, budget=budget, drafters=drafters)


@pytest.mark.long
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
    world.scheduler.prefix_cache.shrink()
    assert world.ledger.held_bytes == 0


@pytest.mark.long
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


@pytest.mark.long
@given(data=st.data())
@settings(max_examples=80)
def test_they_continue_with_another_target(letters: Any, letter_grammar: Any, data: st.DataObject) -> None:
    """Memory became scarce and free again: the models that continue have the same rows."""
    world = data.draw(worlds(letters, letter_grammar))
    # How many rounds the replies take depends on the clock that the chooser reads, so nothing is drawn in them.
    changes = random.Random(data.draw(st.integers(0, 2**32)))
    replies = world.replies()
    for _ in replies:
        if changes.random() < 0.1:
            world.scheduler.target.change_pool(world.new_model(changes.choice([1, 2, 8])).pool)
    for index, asked in enumerate(world.requests):
        assert outcome(replies[index]) == world.alone(asked)


def watched_decodes(world: World, monkeypatch: Any) -> list[int]:
    """Return how many texts each decode advances."""
    decodes: list[int] = []
    decode = TablePool.decode

    def watched(self: TablePool, trees: Any) -> Any:
        if self is world.model.pool:
            decodes.append(len(trees))
        return decode(self, trees)

    monkeypatch.setattr(TablePool, "decode", watched)
    return decodes


def test_as_many_as_a_decode_has_rows_are_written_at_once(letters: Any, monkeypatch: Any) -> None:
    world = World(letters(), [request(attempt=n, max_tokens=6) for n in range(7)], most=3)
    decodes = watched_decodes(world, monkeypatch)
    world.replies().read()
    assert max(decodes) == 3
    assert decodes.count(3) >= 2 * 6


@pytest.mark.long
@pytest.mark.parametrize(
    "name", sorted(name for name in DRAFTERS if name != "random" and not name.endswith((" 16", " alone")))
)
def test_rows_that_texts_leave_go_to_drafts(letters: Any, name: str, monkeypatch: Any) -> None:
    requests = [request([1, 1, n], attempt=n, max_tokens=30) for n in range(3)]
    clock = Clock.of_rounds(monkeypatch)
    world = World(letters(), requests, most=8, drafters=DRAFTERS[name](clock))
    decodes: list[list[int]] = []
    decode = TablePool.decode

    def watched(self: TablePool, trees: Any) -> Any:
        clock.now += 1.0 if self is world.model.pool else 0.01
        if self is world.model.pool:
            decodes.append([len(tree) for _, tree in trees])
        return decode(self, trees)

    monkeypatch.setattr(TablePool, "decode", watched)
    replies = world.replies()
    replies.read()
    together = [rows for rows in decodes if len(rows) == 3]
    assert sum(sum(rows) > 3 for rows in together) >= 5
    assert all(sum(rows) <= 8 for rows in decodes)
    for index, asked in enumerate(requests):
        assert outcome(replies[index]) == world.alone(asked)
        done = replies[index].statistics
        assert done.drafted >= done.accepted
        assert done.tokens == done.rounds + done.accepted
    assert sum(reply.statistics.accepted for reply in replies.answers) > 0


@pytest.mark.parametrize("name", ["repeat", "sequence 1000"])
@pytest.mark.parametrize(("n_rows", "drafted"), [(16, [3, 3, 3]), (8, [1, 2, 2]), (4, [0, 0, 1]), (3, [0, 0, 0])])
def test_a_fixed_mode_drafts_as_alone_and_shares_rows_evenly(
    letters: Any, name: str, n_rows: int, drafted: list[int], monkeypatch: Any
) -> None:
    requests = [request([1, 1, n], attempt=n, max_tokens=30) for n in range(3)]
    world = World(letters(), requests, most=n_rows, drafters=DRAFTERS[name](perf_counter))
    rounds, decode = list[list[int]](), TablePool.decode

    def watched(self: TablePool, trees: Any) -> Any:
        if self is world.model.pool and len(trees) == 3:
            rounds.append([len(tree) - 1 for _, tree in trees])
        return decode(self, trees)

    monkeypatch.setattr(TablePool, "decode", watched)
    replies = world.replies()
    replies.read()
    assert rounds[0] == drafted
    assert all(sum(each) + 3 <= n_rows and max(each) <= 3 for each in rounds)
    assert [outcome(reply) for reply in replies.answers] == [world.alone(asked) for asked in requests]


@pytest.mark.parametrize("kind", ["sequence", "tree", "hierarchy", "nested"])
def test_a_model_drafts_a_level_of_all_texts_in_one_decode(letters: Any, kind: str, monkeypatch: Any) -> None:
    requests = [request([1, 1, n], attempt=n, max_tokens=30) for n in range(3)]
    clock = Clock.of_rounds(monkeypatch)
    world = World(letters(), requests, most=16, drafters=models(kind, 1000, clock))
    counts: Counter[int] = Counter()
    decode = TablePool.decode

    def watched(self: TablePool, trees: Any) -> Any:
        clock.now += 1.0 if self is world.model.pool else 0.01
        if self is not world.model.pool:
            counts[len(trees)] += 1
        return decode(self, trees)

    monkeypatch.setattr(TablePool, "decode", watched)
    replies = world.replies()
    replies.read()
    assert counts[3] > 10 and counts[3] > counts[1]
    assert sum(reply.statistics.accepted for reply in replies.answers) > 10
    assert [outcome(reply) for reply in replies.answers] == [world.alone(asked) for asked in requests]


class Forgetful(Drafter):
    """A stranger's: fails to learn in a text that begins with one token."""

    def draft(self, limit: int) -> Tree:
        return Tree.sequence(self.text.tokens[-1:] * limit)

    def learn(self, done: Round) -> None:
        if self.text.tokens[0] == 5 and len(self.text) > 6:
            raise ArithmeticError("no lesson")


class Fails(Drafter):
    """A stranger's: fails in a text that begins with one token."""

    name = "fails"

    def draft(self, limit: int) -> Tree:
        if self.text.tokens[0] == 5 and len(self.text) > 6:
            raise ArithmeticError("no guess")
        return Tree.sequence(self.text.tokens[-1:] * limit)


@pytest.mark.parametrize("drafter", [Fails, Forgetful])
def test_a_drafter_that_fails_ends_its_own_text(letters: Any, drafter: type[Drafter]) -> None:
    requests = [request([first, 2], attempt=first, max_tokens=20) for first in (1, 5, 3)]
    world = World(letters(), requests, most=8, drafters=drafter)
    replies = [Reply(world.scheduler, asked, lambda: 3) for asked in requests]
    pieces = [next(reply) for reply in replies]
    assert replies[0].read() and replies[2].read()
    with pytest.raises(ArithmeticError):
        replies[1].read()
    assert all(pieces)
    assert outcome(replies[0]) == world.alone(requests[0])
    assert outcome(replies[2]) == world.alone(requests[2])
    assert world.alone(requests[1])[0][: len(replies[1].token_ids)] == replies[1].token_ids


def test_one_prompt_is_read_once(letters: Any, monkeypatch: Any) -> None:
    prompt = [1, 2, 3] * 5
    world = World(letters(), [request(prompt, attempt=n, max_tokens=3) for n in range(8)], most=3)
    read: list[int] = []
    prefill = TablePool.prefill

    def watched(self: TablePool, texts: Any) -> None:
        read.extend(len(tokens) for _, tokens in texts)
        prefill(self, texts)

    monkeypatch.setattr(TablePool, "prefill", watched)
    world.replies().read()
    assert sum(read) == len(prompt) - 1


def test_nobody_waits_for_a_few_tokens_that_another_one_reads(letters: Any, monkeypatch: Any) -> None:
    """Who waits is written behind the others, in decodes of its own; the beginning of all is worth that, not more."""
    begin = [1, 2, 3] * 4
    prompts = [[*begin, 0, 1, 2], *([*begin, 1, n, 2] for n in range(3))]
    world = World(letters(), [request(prompt, max_tokens=6) for prompt in prompts], drafters=NoDrafter)
    decodes = watched_decodes(world, monkeypatch)
    replies = world.replies()
    replies.read()
    # In between there are five, and those that lacked cells.
    assert (decodes[0], {*decodes[1:-1]}, decodes[-1]) == (1, {4}, 3)
    assert [outcome(reply) for reply in replies.answers] == [world.alone(each) for each in world.requests]


@pytest.mark.long
def test_what_drafted_for_a_text_goes_with_it(letters: Any) -> None:
    made, drafters = list[ref[NgramDrafter]](), choosers()

    def drafter() -> Drafter:
        chooser = drafters()
        assert isinstance(chooser, Chooser)
        made.append(ref(chooser.drafters["ngram"]))  # type: ignore[arg-type]
        return chooser

    world = World(letters(), [request(attempt=n, max_tokens=20) for n in range(4)], most=16, drafters=drafter)
    target, texts = world.scheduler.target, list[str]()
    for _ in range(3):
        replies = world.replies()
        texts.append("".join(replies.read()))
        for text in [text for text in target.slots if text is not target.latest]:
            target.drop(text)
        del replies, text
        gc.collect()
        # The first text stays with the target, and so does the one that was written alone at last.
        assert sum(each() is not None for each in made) == len(target.slots) <= 2
    assert len(made) > 4 and len({*texts}) == 1


@pytest.mark.parametrize("kind", ["sequence", "hierarchy", "auto"])
def test_a_model_of_one_text_drafts_for_whichever_is_written_alone(letters: Any, kind: str, monkeypatch: Any) -> None:
    """Between them it reads again what the former one has not copied, and never several in turn."""
    requests = [request([n, 1, 1], attempt=n, max_tokens=16 + 12 * n) for n in range(3)]
    clock = Clock.of_rounds(monkeypatch)
    world = World(letters(), requests, most=16, drafters=DRAFTERS[f"{kind} alone"](clock))
    drafted: dict[int, int] = {1: 0, 2: 0, 3: 0}
    decode = TablePool.decode

    def watched(self: TablePool, trees: Any) -> Any:
        clock.now += 1.0 if self is world.model.pool else 0.01
        if self is world.model.pool:
            drafted[len(trees)] += sum(len(tree) for _, tree in trees) - len(trees)
        return decode(self, trees)

    monkeypatch.setattr(TablePool, "decode", watched)
    replies = world.replies()
    replies.read()
    assert [outcome(reply) for reply in replies.answers] == [world.alone(asked) for asked in requests]
    assert drafted[1] > 5 and (kind == "auto" or drafted[2] == drafted[3] == 0)
    for asked in requests:
        before = drafted[1]
        alone = Reply(world.scheduler, asked, lambda: 3)
        alone.read()
        assert outcome(alone) == world.alone(asked) and drafted[1] > before + 5


def test_drafters_have_cells_for_every_text_that_is_written(letters: Any) -> None:
    requests = [request([n, 1, 1], attempt=n, max_tokens=40) for n in range(3)]
    drafted = []
    for n_cells in (64, 1008):
        world = World(letters(), requests, most=16, drafters=models("sequence", n_cells), budget=10000)
        replies, (pool,) = world.replies(), world.scheduler.target.draft_pools
        replies.read()
        drafted.append([answer.statistics.drafted for answer in replies.answers])
        assert (pool.n_cells > n_cells) == (n_cells == 64)
        further = world.model.pool.n_cells - world.new_model(16).pool.n_cells
        assert world.ledger.held_bytes == pool.n_cells - n_cells + further
        world.scheduler.prefix_cache.shrink()
        assert pool.n_cells == n_cells and not list(world.ledger)
    assert drafted[0] == drafted[1]


def test_the_ledger_has_further_cells_while_they_are_used(letters: Any) -> None:
    long = [1, 2, 3, 4] * 10
    world = World(letters(), [request([n, *long], max_tokens=6) for n in range(4)], budget=1000)
    replies = world.replies()
    next(replies)
    lines = [(line.owner, line.name) for line in world.ledger]
    assert lines == [("texts", "caches")]
    assert world.ledger.held_bytes == world.model.pool.n_cells - world.new_model(4).pool.n_cells > 0
    replies.close()
    world.scheduler.prefix_cache.shrink()
    assert not list(world.ledger)


def test_without_room_for_further_cells_some_wait(letters: Any, monkeypatch: Any) -> None:
    long = [1, 2, 3, 4] * 8
    world = World(letters(), [request([n, *long], attempt=n, max_tokens=6) for n in range(4)], budget=0)
    decodes = watched_decodes(world, monkeypatch)
    replies = world.replies()
    replies.read()
    assert max(decodes) < 4
    assert [outcome(replies[n]) for n in range(4)] == [world.alone(each) for each in world.requests]


@pytest.mark.parametrize("most", [1, 4])
def test_a_reply_is_written_inside_the_loop_over_another(letters: Any, most: int) -> None:
    world = World(letters(), [request(attempt=n) for n in range(3)], most=most)
    replies = world.replies()
    other = request(seed=9, max_tokens=5)
    alone = world.alone(other)
    for n, _ in enumerate(replies):
        if n % 7 == 0:
            inner = Reply(world.scheduler, other, lambda: 0)
            inner.read()
            assert outcome(inner) == alone
    assert [outcome(replies[n]) for n in range(3)] == [world.alone(each) for each in world.requests]


def test_dropped_ones_give_their_turn_back(letters: Any) -> None:
    world = World(letters(), [request(attempt=n) for n in range(3)])
    replies = world.replies()
    next(replies)
    del replies
    assert Reply(world.scheduler, request(max_tokens=3), lambda: 0).read()
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
    assert Reply(world.scheduler, request(max_tokens=3), lambda: 0).read()


@pytest.mark.parametrize("most", [1, 4])
def test_an_error_of_the_engine_ends_all_and_is_raised(letters: Any, most: int, monkeypatch: Any) -> None:
    world = World(letters(), [request(attempt=n) for n in range(3)], most=most)
    replies = world.replies()
    next(replies)

    def fails(self: Any, asked: Any) -> Any:
        raise BackendError("out of order")

    for kind in (TableModel, TablePool):
        monkeypatch.setattr(kind, "decode", fails)
    with pytest.raises(BackendError):
        replies.read()
    assert {replies[n].finish_reason for n in range(3)} == {"error"}
    assert world.ledger.held_bytes == 0


def test_a_closed_model_is_an_error(letters: Any) -> None:
    world = World(letters(), [request(attempt=n) for n in range(3)])
    replies = world.replies()
    world.scheduler.close(lambda: None)
    with pytest.raises(Closed):
        next(replies)


def test_statistics_count_for_each(letters: Any) -> None:
    world = World(letters(), [request(attempt=n, max_tokens=4 + n) for n in range(3)])
    replies = world.replies()
    replies.read()
    for n in range(3):
        statistics = replies[n].statistics
        assert (statistics.tokens, statistics.rounds + statistics.accepted, statistics.prompt_tokens) == (
            4 + n,
            4 + n,
            2,
        )
        assert statistics.tokens_per_s > 0


def test_the_seconds_of_a_round_are_counted_once(letters: Any) -> None:
    world = World(letters(), [request(attempt=n, max_tokens=20) for n in range(16)], most=16)
    replies = world.replies()
    begun = perf_counter()
    replies.read()
    spent = perf_counter() - begun
    statistics = [answer.statistics for answer in replies.answers]
    assert sum(each.prefill_s + each.decode_s for each in statistics) <= spent
    assert all(each.rest_s >= 0 for each in statistics)


def test_the_attempt_makes_the_difference(letters: Any) -> None:
    """The laws above can fail: answers with other attempts are other answers."""
    world = World(letters(), [request(max_tokens=30), request(attempt=1, max_tokens=30)])
    replies = world.replies()
    replies.read()
    assert not np.array_equal(replies[0].token_ids, replies[1].token_ids)
    changed = replace(world.requests[0], settings=replace(world.requests[0].settings, attempt=1))
    assert world.alone(changed) == outcome(replies[1])
