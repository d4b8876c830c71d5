"""Laws of the prefix cache: what a text begins with, and what goes first where cells are needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from edge_spec.generation.prefix_cache import CachedPrompt, PrefixCache
from edge_spec.memory import Ledger
from edge_spec.sampling import Sampler, SamplerSettings
from edge_spec.speculation.drafters.plain import NoDrafter
from edge_spec.speculation.loop import Slot
from edge_spec.speculation.target import Target
from edge_spec.testing import TableModel, random_table

TABLE = random_table(6, order=2, seed=5)
LONG = [number * 7 % 6 for number in range(80)]


class Owner:
    """Whose text it is."""


def new_cache(*, n_cells: int = 400, budget: int | None = None, step: int = 1, most: int = 16) -> PrefixCache:
    """A cache of a table model, on which each token takes a byte."""
    model = TableModel(TABLE, n_ctx=200, n_cells=n_cells, max_rows=most, widths=tuple(range(1, 65)) if most > 1 else ())
    pool: Any = model.pool
    pool.capabilities = replace(pool.capabilities, reuse_step=step)
    return PrefixCache(Target(Slot(pool.path(), NoDrafter())), Ledger(budget))


def begun(cache: PrefixCache, owner: object, tokens: Sequence[int], **asked: Any) -> tuple[Slot, int]:
    """Take a text and read it; returns how much of it had not to be read, too."""
    taken = cache.take(owner, tokens, **asked)
    text, is_held, lacks = taken
    assert text is not None, lacks
    text.begin(tokens, Sampler(SamplerSettings(seed=1), tokens), reuse=is_held)
    n_held = text.model.n_past
    text.read()
    assert text.text == [*tokens]
    if isinstance(owner, CachedPrompt):
        owner.n_read, owner.profile = len(tokens) - 1, text.model.profile.name
    return text, n_held


def kept(cache: PrefixCache, owner: object, tokens: Sequence[int], **asked: Any) -> int:
    """The same, and put it back."""
    text, n_held = begun(cache, owner, tokens, **asked)
    cache.put(text, owner)
    return n_held


@pytest.mark.parametrize("way", ["cells", "memory", "disk"])
def test_a_conversation_goes_on_where_it_was(way: str) -> None:
    cache, owner = new_cache(), Owner()
    cache.to_disk(way == "disk")
    assert kept(cache, owner, LONG) == 0
    if way != "cells":
        cache.suspend(owner)
        assert (cache.n_bytes > 0) == (way == "memory")
    assert kept(cache, owner, [*LONG, 1, 2], beside=()) == len(LONG) - 1
    assert kept(cache, owner, [*LONG[:50], 1, 2]) == 50
    # Copies have moved into the cells.
    assert cache.n_bytes == 0
    cache.release(owner)
    assert kept(cache, owner, LONG) == 0


def test_what_others_have_is_shared_where_they_are_beside_and_may_be() -> None:
    cache, group = new_cache(), Owner()
    first, _ = begun(cache, Owner(), LONG)
    tokens = [*LONG[:60], 1, 1, 1]
    assert kept(cache, Owner(), tokens) == 0
    assert kept(cache, Owner(), tokens, beside=[(first, False)]) == 60
    # After its end the group has it, and nobody else.
    cache.put(first, None, group)
    assert kept(cache, Owner(), tokens, beside=[], group=group) == 60
    assert kept(cache, Owner(), tokens, beside=[], group=Owner()) == 0


def test_what_is_being_read_is_waited_for_unless_only_a_few_tokens_are_missing() -> None:
    cache = new_cache()
    first, _ = begun(cache, Owner(), LONG)
    first.replace(40, LONG[40:])
    assert cache.take(Owner(), [*LONG[:60], 1], beside=[(first, True)]).lacks == "prompt"
    assert kept(cache, Owner(), [*LONG[:60], 1], beside=[(first, False)]) == 40
    assert kept(cache, Owner(), [*LONG[:44], 1], beside=[(first, True)]) == 40


@pytest.mark.parametrize("most", [1, 16])
@pytest.mark.parametrize(("step", "found"), [(0, 0), (1, 70), (16, 64)])
def test_an_earlier_prompt_is_continued_or_copied_in_whole_chunks(most: int, step: int, found: int) -> None:
    cache = new_cache(step=step, most=most)
    owners = [CachedPrompt() for _ in range(4)]
    assert kept(cache, owners[0], LONG, beside=()) == 0
    # It becomes the text of the one that continues it.
    assert kept(cache, owners[1], [*LONG[:70], 1, 1, 1, *LONG], beside=()) == found
    assert (owners[0] in cache) == (step == 0)
    # Of a text of which less is shared there is a copy.
    shared = 40 // step * step if step else 0
    assert kept(cache, owners[2], [*LONG[:40], 2, 2, 2], beside=()) == shared
    assert owners[1] in cache
    # A few tokens are not worth it.
    assert kept(cache, owners[3], [*LONG[:20], 3, 3], beside=()) == 0


def test_cells_are_freed_of_what_nobody_has_and_then_of_what_was_used_least_recently() -> None:
    cache, owners = new_cache(n_cells=208, budget=800), [Owner() for _ in range(2)]
    for number, owner in enumerate(owners):
        kept(cache, owner, [number, *LONG[:40]])
    text, _ = begun(cache, Owner(), [5, 5, *LONG[:20]])
    cache.put(text)
    # The first one is used again.
    assert kept(cache, owners[0], [0, *LONG[:40], 1]) == 40
    states = list[tuple[int, list[bool]]]()
    while cache.spill(1000):
        states.append((text.model.n_past, [cache.idle(owner) is not None for owner in owners]))
    assert states == [(0, [True, True]), (0, [True, False]), (0, [False, False])]
    assert cache.pool.n_free == cache.pool.n_cells
    # Their copies are there.
    assert [kept(cache, owner, [number, *LONG[:40]]) for number, owner in enumerate(owners)] == [40, 40]


def test_the_oldest_copies_go_where_they_exceed_their_limit() -> None:
    cache, owners = new_cache(), [Owner() for _ in range(3)]
    for number, owner in enumerate(owners):
        kept(cache, owner, [number, *LONG])
        cache.suspend(owner)
        if number == 0:
            cache.limit_bytes = cache.n_bytes * 2
    assert [owner in cache for owner in owners] == [False, True, True]


def test_texts_that_are_written_are_restored_before_others_in_a_target_that_opens_again() -> None:
    """It has no more cells than planned, which idle texts may have exceeded."""
    cache = new_cache(n_cells=200)
    prompts = [[token, *LONG] for token in range(4)]
    for prompt in prompts[:-1]:
        kept(cache, CachedPrompt(), prompt, beside=())
    written, _ = begun(cache, CachedPrompt(), prompts[-1], beside=())
    assert cache.pool.n_cells > 200
    cache.save_slots(200)
    cache.target.change_pool(new_cache(n_cells=200).pool)
    cache.restore_slots()
    assert written.model.n_past == cache.n_past == len(LONG)
