"""The law of drafters: with drafts a target writes exactly the text that it writes without them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from edge_spec.generation.options import ReplyOptions
from edge_spec.generation.reply import Reply
from edge_spec.generation.request import ReplyRequest
from edge_spec.generation.scheduler import Scheduler
from edge_spec.sampling import SamplerSettings
from edge_spec.speculation.drafters.base import Drafter
from edge_spec.speculation.drafters.plain import NoDrafter
from edge_spec.speculation.language_model import Logits
from edge_spec.speculation.loop import Slot
from edge_spec.speculation.target import Target
from edge_spec.testing.table_model import TableModel, random_table

__all__ = ["require_lossless"]

_SAMPLERS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.7, "top_k": 3},
    {"temperature": 1.0, "min_p": 0.0, "top_p": 1.0},
    {"temperature": 1.5, "repeat_penalty": 1.3, "penalty_window": 5},
    {"temperature": 1.0, "mirostat": 2, "mirostat_tau": 1.2},
    {"temperature": 0.8, "dry_multiplier": 0.9, "dry_allowed_length": 1},
)


def require_lossless(make_drafter: Callable[[Logits], Drafter], *, n_cases: int = 100, seed: int = 0) -> float:
    """Write random texts with a drafter and without, and compare them token by token.

    In each case a random target writes one to three texts of up to 40 tokens side by side, each with a drafter of its
    own, and then each of them alone without drafts. Samplers, prompts, full contexts, tokens that end a text and the
    lengths of drafts are drawn as well; some targets take no trees, some are recurrent.

    Args:
        make_drafter: returns a new drafter of one text. It is given the target's table, logits ``[n_vocab] * 3``, of 3
            to 8 tokens: a drafter with a model can derive one from it, ``TableModel(random_table(len(table), scale=0.5,
            like=table))``; others ignore it.
        n_cases: how many cases are tried; a hundred take some seconds, most of them in the drafter.
        seed: of the first case; those after it have the numbers that follow.

    Returns:
        The share of the drafted tokens that the targets accepted, 0 to 1.

    Raises:
        AssertionError: a text differs, and its case is named; or nothing was drafted in any case.
        Exception: whatever the drafter raises.
    """
    drafted = accepted = 0
    for number in range(seed, seed + n_cases):
        case = _Case(number)
        replies = case.written(case.requests, partial(make_drafter, case.table))
        for reply, request in zip(replies, case.requests, strict=True):
            (alone,) = case.written([request], NoDrafter)
            found, expected = (f"{each.token_ids} ({each.finish_reason})" for each in (reply, alone))
            assert found == expected, (
                f"drafts changed the text after {[*request.prompt]} from {expected} to {found}, with a target of "
                f"{case.target} and {len(replies)} texts side by side; n_cases=1 and seed={number} repeat this case"
            )
            drafted += reply.statistics.drafted
            accepted += reply.statistics.accepted
    assert drafted, f"nothing was drafted in {n_cases} cases, so nothing was tested"
    return accepted / drafted


class _Case:
    """A random target, and the texts that are asked of it."""

    def __init__(self, number: int) -> None:
        chance = random.Random(number)
        self.number = number
        self.table = random_table(chance.randint(3, 8), seed=number)
        max_rows = chance.choice([16, 8, 4])
        recurrent = {"takes_trees": False, "n_snapshots": max_rows}
        kinds: tuple[dict[str, Any], ...] = ({}, {"keeps_branches": False}, {"takes_trees": False}, recurrent)
        self.target = {"n_ctx": chance.choice([64, 16]), "max_rows": max_rows, **chance.choice(kinds)}
        self.end = chance.choice([-1, 0])
        self.requests = [
            ReplyRequest(
                prompt=chance.choices(range(len(self.table)), k=chance.randint(1, 12)),
                settings=SamplerSettings(seed=chance.getrandbits(32), **chance.choice(_SAMPLERS)),
                options=ReplyOptions(max_tokens=40),
            )
            for _ in range(chance.choice([1, 1, 2, 3]))
        ]

    def written(self, requests: Iterable[ReplyRequest], make_drafter: Callable[[], Drafter]) -> list[Reply]:
        """Return replies that were written side by side."""
        chance = random.Random(self.number)
        target = Target(Slot(TableModel(self.table, **self.target), make_drafter()), lambda _: make_drafter())
        scheduler = Scheduler(target, _Letters(self.end))
        replies = [Reply(scheduler, request, lambda: chance.randint(0, 9)) for request in requests]
        try:
            # Whoever reads one of them advances all that were begun.
            for reply in replies:
                next(reply, None)
            for reply in replies:
                reply.read()
        finally:
            scheduler.close(target.close)
        return replies


class _Letters:
    """The vocabulary of the targets."""

    def __init__(self, end: int) -> None:
        self._end = end

    def token_bytes(self, token: int) -> bytes:
        return b"abcdefgh"[token : token + 1]

    def ends(self, token: int) -> bool:
        return token == self._end
