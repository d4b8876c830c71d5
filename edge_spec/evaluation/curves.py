"""What a decode costs by its number of rows and by the text before them, for every model that is open."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter

from edge_spec.model import TextModel
from edge_spec.speculation.adaptive.costs import CostCurve
from edge_spec.speculation.followed_text import FollowedText
from edge_spec.speculation.tree import Tree

__all__ = ["DEPTHS", "CostOfRows", "cost_curves", "n_decodes", "speed_up_of_chains"]

DEPTHS = (32, 512, 2048)
"""Cells in use before the rows."""

_WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16)
_WARM_UP = 2


@dataclass(frozen=True, kw_only=True)
class CostOfRows:
    """Of one model at one depth.

    Attributes:
        model: ``target``, or the smaller model's name in the drafter.
        depth: cells in use before the rows.
        milliseconds: of a decode by its number of rows; medians.
        row: what a further row takes, in decodes of one row: the slope from one row to the widest.
    """

    model: str
    depth: int
    milliseconds: dict[int, float]

    @property
    def row(self) -> float:
        widths = sorted(self.milliseconds)
        if len(widths) < 2:
            return 0.0
        first, last = self.milliseconds[widths[0]], self.milliseconds[widths[-1]]
        return (last - first) / (first * (widths[-1] - widths[0]))


def speed_up_of_chains(target: CostOfRows, draft: CostOfRows, length: int, chance: float) -> float:
    """What chains of so many tokens bring over plain decoding, if each is accepted with the same chance.

    A round writes ``1 + chance + ... + chance ** length`` tokens for one decode of the target and ``length`` single
    rows of the drafter (Leviathan et al., arXiv 2211.17192, with measured costs). Between measured widths costs are
    taken as linear, and beyond them in proportion.
    """
    curve = CostCurve(target.milliseconds)
    tokens = sum(chance**depth for depth in range(length + 1))
    return tokens * curve(1) / (curve(length + 1) + length * draft.milliseconds[1])


def n_decodes(model: TextModel, *, depths: Sequence[int] = DEPTHS, rounds: int = 9) -> int:
    """How many decodes ``cost_curves`` measures, those that warm up included."""
    return sum(
        len(_widths(followed)) * (rounds + _WARM_UP)
        for followed in model.followed.values()
        for _ in _depths(followed, depths)
    )


def cost_curves(
    model: TextModel,
    *,
    depths: Sequence[int] = DEPTHS,
    rounds: int = 9,
    on_decode: Callable[[], None] = lambda: None,
) -> Iterator[CostOfRows]:
    """Measure the target and all models of its drafter.

    Widths follow each other in an order that changes from round to round, so that a processor that throttles or another
    program slows all of them alike. Depths that a context has no room for are left out. Caches are empty afterwards.

    Args:
        depths: cells in use before the rows.
        rounds: decodes of each width, after two to warm up.
        on_decode: called after every decode.
    """
    with model.lock.turn():
        for name, followed in model.followed.items():
            followed.forget()
            for depth in _depths(followed, depths):
                yield CostOfRows(
                    model=name, depth=depth, milliseconds=_measured(followed, depth, rounds=rounds, on_decode=on_decode)
                )
            followed.forget()


def _measured(followed: FollowedText, depth: int, *, rounds: int, on_decode: Callable[[], None]) -> dict[int, float]:
    model, order = followed.model, random.Random(depth)
    text = [order.randrange(min(256, model.n_vocab - 1), model.n_vocab) for _ in range(depth + max(_WIDTHS))]
    model.prefill(text[model.n_past : depth])
    seconds: dict[int, list[float]] = {n: [] for n in _widths(followed)}
    for turn in range(-_WARM_UP, rounds):
        for n in order.sample(list(seconds), len(seconds)):
            rows = Tree.sequence(text[depth : depth + n])
            started = perf_counter()
            model.decode(rows)
            spent = perf_counter() - started
            model.rollback(depth)
            if turn >= 0:
                seconds[n].append(spent)
            on_decode()
    return {n: 1e3 * median(found) for n, found in seconds.items()}


def _widths(followed: FollowedText) -> list[int]:
    return [n for n in _WIDTHS if n <= followed.model.capabilities.max_rows]


def _depths(followed: FollowedText, depths: Sequence[int]) -> list[int]:
    return [depth for depth in sorted(depths) if depth + max(_WIDTHS) <= followed.model.n_ctx]
