"""A law of texts that share a decode: what strikes at any line of a step changes no text; at most it ends them."""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import partial
from itertools import count
from linecache import getline
from types import FrameType
from typing import Any

import pytest
from speculator_replies import request_of

from edge_spec.errors import BackendError
from edge_spec.generation.reply import Reply
from edge_spec.generation.scheduler import Scheduler
from edge_spec.sampling import SamplerSettings
from edge_spec.speculation.chooser import Chooser
from edge_spec.speculation.drafters.base import Drafter
from edge_spec.speculation.drafters.model import ModelDrafter
from edge_spec.speculation.drafters.ngram import NgramDrafter
from edge_spec.speculation.drafters.plain import NoDrafter
from edge_spec.speculation.loop import Slot
from edge_spec.speculation.target import Target
from edge_spec.testing import TableModel, random_table

N_TEXTS, N_TOKENS, N_VOCAB = 3, 12, 6
_TABLE = random_table(N_VOCAB, order=2, seed=5)
_FOLDERS = ("/edge_spec/generation/", "/edge_spec/speculation/", "/edge_spec/engines/", "/support/table_model")
_MODULES = ("speculation.round", "speculation.loop", "generation.scheduler")
_GUIDED = 1
_N_STRIKES = 120
"""Lines that are struck, evenly over all, besides each line of the scheduler's folder."""


class Struck(Exception):
    """What may happen anywhere: no memory, a defect."""


class World:
    """A scheduler whose texts have drafters of their own, and the replies."""

    def __init__(self, letters: Any, letter_grammar: Any, kind: str) -> None:
        self._grammar = letter_grammar(1, N_VOCAB, -1)
        self._kind = kind
        self._pool = TableModel(_TABLE, n_ctx=48, n_cells=200, max_rows=16).pool
        self._first: Chooser | None = None
        model = TableModel(_TABLE, n_ctx=48, n_cells=160, max_rows=16)
        target = Target(Slot(model, self._drafter()), lambda path: self._drafter())
        self.scheduler = Scheduler(target, letters(-1))

    def _drafter(self) -> Drafter:
        small = ModelDrafter(self._pool.path(), width=2, beam=1)
        if self._kind == "auto":
            ticks = count()
            chooser = Chooser([small, NgramDrafter()], seconds={1: 1.0, 64: 1.1}, clock=lambda: float(next(ticks)))
            self._first = self._first or chooser
            chooser.join(self._first)
            return chooser
        # The first text has the model, and no other.
        self._kind, kind = "ngram", self._kind
        return {"mixed": small, "ngram": NgramDrafter(), "plain": NoDrafter()}[kind]

    def reply(self, number: int) -> Reply:
        sampling = SamplerSettings(seed=3, attempt=number, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
        grammar = self._grammar if number == _GUIDED else None
        asked = request_of([1, 2, 3, 1, 2, 4, 1, 3, 2, 5, 1, 2], sampling, max_tokens=N_TOKENS, grammar=grammar)
        return Reply(self.scheduler, asked, lambda: 3)


class Striking:
    """Raises an error before a line of a step, counted over all steps of a scheduler while the context lasts.

    Attributes:
        n_lines: how many there were.
        last_of: the number of each line of the scheduler's folder when it was about to run for the last time.
    """

    def __init__(self, scheduler: Scheduler, line: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.n_lines = 0
        self.last_of = dict[tuple[str, int], int]()
        self._line = line
        step = scheduler.step

        def traced(waits: Any) -> bool:
            # Following lines takes most of the time, and it strikes once.
            if line and self.n_lines >= line:
                return step(waits)
            before = sys.gettrace()
            sys.settrace(self._trace)
            try:
                return step(waits)
            finally:
                sys.settrace(before)

        monkeypatch.setattr(scheduler, "step", traced)

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        name = frame.f_code.co_filename
        if not any(folder in name for folder in _FOLDERS):
            return None
        # At the end of a block Python comes to its first line again, and an error there keeps it from being left; at a
        # `try:` nothing happens, and Python 3.11 looks for no handler around it.
        if event == "line" and not getline(name, frame.f_lineno).lstrip().startswith(("with ", "try:")):
            self.n_lines += 1
            if self.n_lines == self._line:
                raise Struck
            if _FOLDERS[0] in name:
                self.last_of[name, frame.f_lineno] = self.n_lines
        return self._trace


def written_by_turns(world: World) -> list[Reply]:
    """Write replies by turns, in one loop, in which something strikes once."""
    replies = [world.reply(number) for number in range(N_TEXTS)]
    while any(not reply.is_complete for reply in replies):
        for reply in replies:
            with suppress(Struck, BackendError):
                next(reply, None)
    return replies


@pytest.mark.long
@pytest.mark.parametrize("kind", ["mixed", "auto"])
def test_what_strikes_at_any_line_of_a_step_changes_no_text(
    letters: Any, letter_grammar: Any, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    ticks = count()
    for module in _MODULES:
        monkeypatch.setattr(f"edge_spec.{module}.perf_counter", lambda: float(next(ticks)))
    new_world = partial(World, letters, letter_grammar)
    alone = [new_world("plain").reply(number) for number in range(N_TEXTS)]
    texts = [reply.read() for reply in alone]
    whole = [reply.token_ids for reply in alone]
    world = new_world(kind)
    counting = Striking(world.scheduler, 0, monkeypatch)
    written_by_turns(world)
    assert counting.n_lines > 10000
    n_ended = n_alone = 0
    evenly = range(1, counting.n_lines + 1, counting.n_lines // _N_STRIKES)
    for line in sorted({*evenly, *(counting.last_of.values() if kind == "mixed" else ())}):
        world = new_world(kind)
        Striking(world.scheduler, line, monkeypatch)
        replies = written_by_turns(world)
        ended = [reply for reply in replies if reply.finish_reason == "error"]
        for number, reply in enumerate(replies):
            if reply in ended:
                assert reply.token_ids == whole[number][: len(reply.token_ids)], (line, number)
                assert isinstance(reply.error, Struck | BackendError), (line, number)
            else:
                assert (reply.token_ids, reply.text) == (whole[number], texts[number]), (line, number)
        n_ended += bool(ended)
        n_alone += len(ended) == 1
        again = world.reply(0)
        assert (again.read(), again.token_ids) == (texts[0], whole[0]), line
        assert world.scheduler.is_idle
        cache = world.scheduler.prefix_cache
        while cache.pool.n_free < cache.pool.n_cells and cache.spill(cache.pool.n_cells):
            pass
        assert cache.pool.n_free == cache.pool.n_cells, line
    # What belongs to one text ends that one alone.
    assert n_ended > n_alone > 0
