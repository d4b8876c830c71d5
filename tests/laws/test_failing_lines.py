"""A law of texts that share a decode: an error at any line of a round ends some of them, and changes none."""

from __future__ import annotations

import sys
from linecache import getline
from types import FrameType
from typing import Any

import pytest
from speculator_replies import request_of
from table_model import TableModel, random_table

from edge_spec.errors import BackendError
from edge_spec.generation.driver import Driver
from edge_spec.generation.reply import Reply
from edge_spec.sampling import SamplerSettings
from edge_spec.speculation.drafters.ngram import NgramDrafter
from edge_spec.speculation.loop import Speculator
from edge_spec.speculation.target import Target

N_TEXTS, N_TOKENS = 4, 12
_TABLE = random_table(6, order=2, seed=5)
_FOLDERS = ("/edge_spec/generation/", "/edge_spec/speculation/", "/edge_spec/engines/", "/support/table_model")


class Struck(Exception):
    """What may happen anywhere: no memory, a defect."""


class StruckOut(BaseException):
    """What may come from outside: Ctrl-C."""


def new_driver(letters: Any) -> Driver:
    model = TableModel(_TABLE, n_ctx=48, n_cells=160, max_rows=16)
    return Driver(Target(Speculator(model, NgramDrafter()), lambda path: NgramDrafter()), letters(-1))


def new_reply(driver: Driver, number: int) -> Reply:
    sampling = SamplerSettings(seed=3, attempt=number, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
    return Reply(driver, request_of([1, 2, 3, 1, 2], sampling, max_tokens=N_TOKENS), lambda: 3)


class Striking:
    """Raises an error before a line of the code, counted over all blocks that it is around."""

    def __init__(self, line: int, error: type[BaseException]) -> None:
        self.n_lines = 0
        self._line, self._error = line, error

    def __enter__(self) -> None:
        self._before = sys.gettrace()
        # Following lines takes most of the time, and it strikes once.
        if not self._line or self.n_lines < self._line:
            sys.settrace(self._trace)

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        name = frame.f_code.co_filename
        # Like a lock of Python's, that of turns stays locked if its release is interrupted.
        if name.endswith("/lock.py") or not any(folder in name for folder in _FOLDERS):
            return None
        # At the end of a block Python comes to its first line again, and an error there keeps it from being left; at a
        # `try:` nothing happens, and Python 3.11 looks for no handler around it.
        if event == "line" and not getline(name, frame.f_lineno).lstrip().startswith(("with ", "try:")):
            self.n_lines += 1
            if self.n_lines == self._line:
                raise self._error
        return self._trace


def written_by_turns(driver: Driver, striking: Striking, error: type[BaseException]) -> list[Reply]:
    """Write replies by turns, in one loop, in which something strikes once."""
    replies = [new_reply(driver, number) for number in range(N_TEXTS)]
    n_struck = 0
    while any(not reply.is_complete for reply in replies):
        for reply in replies:
            try:
                with striking:
                    next(reply, None)
            except (error, BackendError):
                n_struck += 1
    # A failed decode is an error of all that shared it.
    assert n_struck <= N_TEXTS
    return replies


@pytest.mark.parametrize("error", [Struck, StruckOut])
def test_an_error_at_any_line_of_a_round_changes_no_text(letters: Any, error: type[BaseException]) -> None:
    alone = [new_reply(new_driver(letters), number) for number in range(N_TEXTS)]
    texts = [reply.read() for reply in alone]
    whole = [reply.token_ids for reply in alone]
    counting = Striking(0, error)
    written_by_turns(new_driver(letters), counting, error)
    assert counting.n_lines > 2000
    n_ended = 0
    for line in range(1, counting.n_lines + 1, 40):
        driver = new_driver(letters)
        replies = written_by_turns(driver, Striking(line, error), error)
        for number, reply in enumerate(replies):
            if reply.finish_reason in ("error", "cancelled"):
                n_ended += 1
                assert reply.token_ids == whole[number][: len(reply.token_ids)], (line, number)
            else:
                assert (reply.token_ids, reply.text) == (whole[number], texts[number]), (line, number)
        again = new_reply(driver, 0)
        assert (again.read(), again.token_ids) == (texts[0], whole[0]), line
        assert driver.is_idle
    assert n_ended > 0
