"""Laws of replies that are read side by side: how far ahead of its reader one gets, who is told, when time is up, and
what becomes of cells that are scarce."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from clock import Clock
from speculator_replies import request_of

from edge_spec.errors import PoolFull
from edge_spec.generation.prefix_cache import PrefixCache
from edge_spec.generation.reply import Reply
from edge_spec.generation.request import ReplyRequest
from edge_spec.generation.scheduler import Scheduler
from edge_spec.generation.worker import Wait
from edge_spec.memory import Ledger
from edge_spec.sampling import SamplerSettings
from edge_spec.speculation.drafters.ngram import NgramDrafter
from edge_spec.speculation.drafters.plain import NoDrafter
from edge_spec.speculation.follower import Follower
from edge_spec.speculation.loop import Slot
from edge_spec.speculation.pool import TILE
from edge_spec.speculation.target import Target
from edge_spec.speculation.text import Text
from edge_spec.testing import TableModel, random_table
from edge_spec.testing.table_model import TablePool

TABLE = random_table(6, order=2, seed=5)
MOST_AHEAD = 256
"""As edge_spec/generation/scheduler.py states it."""


def new_scheduler(
    letters: Any, *, n_ctx: int = 1024, n_cells: int | None = None, rows: int = 16, budget: int | None = None
) -> Scheduler:
    """A scheduler of a table model, on which each token takes a byte."""
    model = TableModel(TABLE, n_ctx=n_ctx, n_cells=n_cells, max_rows=rows)
    target = Target(Slot(model, NgramDrafter()), lambda path: NgramDrafter())
    return Scheduler(target, letters(-1), PrefixCache(target, Ledger(budget)))


def request(number: int, prompt: Sequence[int] = (1, 2), **asked: Any) -> ReplyRequest:
    sampling = SamplerSettings(seed=3, attempt=number, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
    return request_of(list(prompt), sampling, **asked)


def alone(letters: Any, asked: ReplyRequest, n_ctx: int = 1024) -> tuple[list[int], str]:
    """Tokens and text of a reply that has no company and no drafts."""
    scheduler = Scheduler(Target(Slot(TableModel(TABLE, n_ctx=n_ctx, max_rows=16), NoDrafter())), letters(-1))
    reply = Reply(scheduler, asked, lambda: 0)
    text = reply.read()
    return reply.token_ids, text


def read_by_turns(replies: Sequence[Reply]) -> None:
    """Read replies to their ends, a piece of each in turn."""
    left = list(replies)
    while left:
        left = [reply for reply in left if next(reply, None) is not None]


def test_a_reply_that_nobody_reads_stays_at_most_so_far_ahead(letters: Any) -> None:
    scheduler, asked = new_scheduler(letters), [request(number, max_tokens=900) for number in range(2)]
    unread, read = (Reply(scheduler, each, lambda: 3) for each in asked)
    next(unread)
    n_taken = len(unread.token_ids)
    read.read()
    assert len(unread.token_ids) == n_taken
    # The last of these rounds may have brought a draft as well.
    assert MOST_AHEAD <= unread.sequence.n_ahead < MOST_AHEAD + 4
    unread.read()
    assert [(each.token_ids, each.text) for each in (unread, read)] == [alone(letters, each) for each in asked]


def test_what_nobody_took_of_a_reply_that_is_closed_is_gone(letters: Any) -> None:
    scheduler = new_scheduler(letters)
    unread, read = (Reply(scheduler, request(number, max_tokens=300), lambda: 3) for number in range(2))
    for _ in range(20):
        next(unread)
    taken, statistics, drawn = unread.token_ids[:], deepcopy(unread.statistics), unread.drawn
    read.read()
    unread.close()
    assert unread.token_ids == taken == alone(letters, request(0, max_tokens=300))[0][: len(taken)]
    assert unread.statistics.tokens == statistics.tokens
    assert unread.drawn == drawn


@pytest.mark.parametrize("is_driven", [True, False])
def test_time_is_up_whoever_writes(letters: Any, is_driven: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, scheduler = Clock.of_replies(monkeypatch), new_scheduler(letters)
    hasty = Reply(scheduler, request(0, max_tokens=900, timeout=0.05), lambda: 3)
    next(hasty)
    clock.now += 0.06
    other = Reply(scheduler, request(1, max_tokens=30), lambda: 3)
    if is_driven:
        assert other.read() == alone(letters, request(1, max_tokens=30))[1]
        assert hasty.has_ended
    n_taken = len(hasty.token_ids)
    list(hasty)
    assert hasty.finish_reason == "timeout"
    assert hasty.token_ids == alone(letters, request(0, max_tokens=900))[0][:n_taken]
    other.read()
    assert scheduler.is_idle


def test_who_reads_a_reply_is_told_of_it(letters: Any) -> None:
    scheduler, told = new_scheduler(letters), dict[int, set[int]]()
    read_in = dict[int, int]()

    def hear(number: int, *_: Any) -> None:
        told.setdefault(number, set()).add(threading.get_ident())

    def read(number: int) -> None:
        read_in[number] = threading.get_ident()
        asked = request(
            number,
            [number % 5, 1, 2] * 40,
            max_tokens=200,
            on_progress=lambda *what: hear(number, *what),
            on_notice=lambda *what: hear(number, *what),
        )
        reply = Reply(scheduler, asked, lambda: 3)
        reply.sequence.notice("a sentence")
        assert (reply.read(), reply.notices) == (alone(letters, replace_told(asked))[1], ["a sentence"])
        ended.append(number)

    def replace_told(asked: ReplyRequest) -> ReplyRequest:
        silent = replace(asked.options, on_progress=lambda *_: None, on_notice=lambda *_: None)
        return replace(asked, options=silent)

    ended: list[int] = []
    threads = [threading.Thread(target=read, args=(number,), daemon=True) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(ended) == list(range(6))
    assert told == {number: {thread} for number, thread in read_in.items()}


@pytest.mark.parametrize("n_readers", [1, 2])
def test_half_the_cells_that_texts_need_starve_none(letters: Any, n_readers: int) -> None:
    n_texts, n_tokens = 16, 90
    asked = [request(number, [number % 6, 3, number // 6] * 10, max_tokens=n_tokens - 30) for number in range(n_texts)]
    scheduler = new_scheduler(letters, n_ctx=96, n_cells=n_texts * 96 // 2, budget=0)
    replies = [Reply(scheduler, each, lambda: 3) for each in asked]
    if n_readers == 1:
        read_by_turns(replies)
    else:
        threads = [threading.Thread(target=reply.read, daemon=True) for reply in replies]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert [(each.token_ids, each.text) for each in replies] == [alone(letters, each, 96) for each in asked]
    pool = scheduler.target.pool
    assert pool is not None and pool.n_cells == n_texts * 96 // 2
    assert scheduler.is_idle


@pytest.mark.long
@pytest.mark.parametrize("seed", range(20))
def test_cells_may_come_and_go_while_texts_are_written(letters: Any, seed: int) -> None:
    chance = random.Random(seed)
    asked = [
        request(number, [number % 6, 3, chance.randrange(6)] * chance.randrange(1, 10), max_tokens=60)
        for number in range(12)
    ]
    scheduler = new_scheduler(letters, n_ctx=96, n_cells=96, budget=chance.choice([None, 300, 600]))
    replies = [Reply(scheduler, each, lambda: 3) for each in asked]
    left, sizes = list(replies), set[int]()
    pool = scheduler.target.pool
    assert pool is not None
    while left:
        reply = chance.choice(left)
        if next(reply, None) is None:
            left.remove(reply)
        if chance.random() < 0.1:
            # What a memory guard does where memory is scarce, and when it is free again.
            with scheduler.worker.pause():
                scheduler.prefix_cache.to_disk(chance.random() < 0.7)
                scheduler.prefix_cache.shrink()
        sizes.add(pool.n_cells)
    assert len(sizes) > 1
    assert [(each.token_ids, each.text) for each in replies] == [alone(letters, each, 96) for each in asked]


@pytest.mark.long
def test_a_pool_that_is_full_of_kept_texts_is_not_copied_for_each_further_one(letters: Any, monkeypatch: Any) -> None:
    scheduler, sizes = new_scheduler(letters, n_ctx=96, rows=64, budget=5000), list[int]()
    resize, pool = TablePool.resize, scheduler.target.pool
    assert pool is not None
    n_planned, kept = pool.n_cells, list[_Kept]()
    monkeypatch.setattr(TablePool, "resize", lambda pool, n_cells: (sizes.append(n_cells), resize(pool, n_cells)))
    for number in range(300):
        reply = Reply(scheduler, request(number, [1, 2, 3] * 10, max_tokens=20), lambda: 3)
        kept.append(_Kept(number))
        reply.sequence.context.session = kept[-1]
        reply.read()
        if number % 10 == 0:
            scheduler.prefix_cache.shrink()
    assert 4000 < max(sizes) <= n_planned + 5000
    assert len(sizes) < 40


class _Kept:
    """Whose text is kept: a conversation."""

    def __init__(self, number: int) -> None:
        self.number = number


def test_prompts_are_read_in_whole_chunks_where_bits_depend_on_it(letters: Any, monkeypatch: Any) -> None:
    scheduler = new_scheduler(letters)
    pool = scheduler.target.pool
    chunk = 16
    pool.capabilities = replace(pool.capabilities, reuse_step=chunk, prefill_chunk=chunk)
    asked = [request(number, [number, 1, 2, 3] * (5 + 7 * number), max_tokens=60) for number in range(4)]
    texts, read = [alone(letters, each) for each in asked], list[tuple[int, int]]()
    prefill = TablePool.prefill

    def watched(own: TablePool, texts: Any) -> None:
        assert len(texts) == 1
        read.append((texts[0][0].n_past, len(texts[0][1])))
        prefill(own, texts)

    monkeypatch.setattr(TablePool, "prefill", watched)
    replies = [Reply(scheduler, each, lambda: 3) for each in asked]
    next(replies[0])
    read_by_turns(replies)
    assert [(each.token_ids, each.text) for each in replies] == texts
    assert all(n_past % chunk == 0 for n_past, _ in read)
    # Only the last piece of a prompt is shorter.
    assert [n for _, n in read if n != chunk] == [(len(each.prompt) - 1) % chunk for each in asked]


def test_a_text_that_lacks_cells_to_be_moved_is_as_it_was(letters: Any) -> None:
    model = TableModel(TABLE, n_ctx=96, n_cells=96 + TILE, max_rows=8)
    tokens = [number % 6 for number in range(96)]
    follower = Follower(model)
    follower.follow(Text(tokens), reuse=False)
    follower.read()
    # Another text shares what would be moved.
    shared = model.fork(95)
    with pytest.raises(PoolFull):
        follower.cut(10, 20)
    assert (follower.text.tokens, model.cells) == (tokens, tuple(tokens[:-1]))
    shared.close()
    follower.cut(10, 20)
    assert (follower.text.tokens, model.cells) == (tokens[:10] + tokens[20:], tuple(tokens[:10] + tokens[20:-1]))


def test_a_conversation_that_has_its_own_cells_waits_for_nobody(letters: Any) -> None:
    scheduler, began = new_scheduler(letters), [1, 2, 3, 4] * 8
    # Prompts are read in pieces.
    pool = scheduler.target.pool
    assert isinstance(pool, TablePool)
    pool.capabilities = replace(pool.capabilities, prefill_chunk=16)
    kept = _Kept(0)
    first = Reply(scheduler, request(0, began, max_tokens=4), lambda: 0)
    first.sequence.context.session = kept
    first.read()
    asked = [request(1, [*began, *[5, 4, 3] * 40], max_tokens=4), request(2, [*began, 5, 4, 3, 1, 1], max_tokens=4)]
    another, own = (Reply(scheduler, each, lambda: 0) for each in asked)
    own.sequence.context.session = kept
    # The other one reads what this one begins with, and is far from its end.
    n_live = []
    for reply in (another, own):
        scheduler.step([Wait([reply.sequence], reply.reader, lambda: None)])
        n_live.append(scheduler.n_live)
    assert n_live == [1, 2]
    assert [own.read(), another.read()] == [alone(letters, each)[1] for each in reversed(asked)]


@pytest.mark.long
def test_texts_that_come_and_go_do_not_move_the_pool_each_time(letters: Any, monkeypatch: Any) -> None:
    scheduler, sizes, kept = new_scheduler(letters, n_ctx=96, rows=16), list[int](), list[_Kept]()
    resize = TablePool.resize
    monkeypatch.setattr(TablePool, "resize", lambda pool, n_cells: (sizes.append(n_cells), resize(pool, n_cells)))
    n_resized = []
    for burst in range(12):
        for number in range(8 if burst % 2 else 16):
            reply = Reply(
                scheduler, request(burst * 16 + number, [number % 6, burst % 6] * 5, max_tokens=40), lambda: 3
            )
            kept.append(_Kept(number))
            reply.sequence.context.session = kept[-1]
            reply.read()
        # As many are kept as a server keeps, and nobody asks for a while.
        del kept[:-64]
        scheduler.prefix_cache.shrink()
        n_resized.append(len(sizes))
    assert len(sizes) <= 8 and n_resized[6] == n_resized[-1]
    # Where memory is scarce nothing is held that no text needs.
    scheduler.prefix_cache.to_disk(True)
    pool = scheduler.target.pool
    assert pool is not None and pool.n_cells == 96 + 16
