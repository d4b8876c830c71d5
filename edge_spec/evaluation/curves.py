"""What a decode costs by its number of rows and by the text before them, for every model that is open."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter

from edge_spec.model import TextModel
from edge_spec.speculation.follower import Follower
from edge_spec.speculation.tree import Tree

__all__ = ["DEPTHS", "CostOfRows", "cost_curves", "costs_by_role", "n_decodes", "role_of"]

DEPTHS = (32, 512, 2048)
"""Cells in use before the rows."""

_WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16)
_WARM_UP = 2
_LEAST = 3
"""Decodes of a width without which its cost is not known, where measuring was stopped."""


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


def role_of(name: str) -> str:
    """Return the role of a model by its name in the drafter."""
    if name == "target":
        return name
    return "intermediate" if name.endswith(".target") else "draft"


def costs_by_role(curves: Iterable[CostOfRows]) -> dict[str, dict[int, dict[int, float]]]:
    """Return seconds by role, cells in use before the rows, and number of rows."""
    found: dict[str, dict[int, dict[int, float]]] = {}
    for curve in curves:
        seconds = {n: spent / 1e3 for n, spent in curve.milliseconds.items()}
        found.setdefault(role_of(curve.model), {})[curve.depth] = seconds
    return found


def n_decodes(model: TextModel, *, depths: Sequence[int] = DEPTHS, rounds: int = 9) -> int:
    """Return how many decodes ``cost_curves`` measures, those that warm up included."""
    return sum(
        len(_widths(each)) * (rounds + _WARM_UP) for depth in depths for each in _with_room(model, depth).values()
    )


def cost_curves(
    model: TextModel,
    *,
    depths: Sequence[int] = DEPTHS,
    rounds: int = 9,
    on_decode: Callable[[], None] = lambda: None,
    is_over: Callable[[], bool] = lambda: False,
) -> Iterator[CostOfRows]:
    """Measure the target and all models of its drafter.

    Models and widths take turns in an order that changes from round to round: a processor that throttles or another
    program slows all of them alike, and a small model finds the processor's caches as a large one has left them, which
    is what it finds when it drafts. Depths that a context has no room for are left out. Caches are empty afterwards.

    Args:
        depths: cells in use before the rows.
        rounds: decodes of each width, after two to warm up.
        on_decode: called after every decode.
        is_over: whether to stop; what was measured a few times by then is told all the same.
    """
    with model.lock.turn():
        every = model.followed.values()
        for followed in every:
            followed.forget()
        for depth in sorted(depths):
            models = _with_room(model, depth)
            seconds = _measured(models, depth, rounds=rounds, on_decode=on_decode, is_over=is_over)
            for name, found in seconds.items():
                if all(len(spent) >= min(rounds, _LEAST) for spent in found.values()):
                    milliseconds = {n: 1e3 * median(spent) for n, spent in found.items()}
                    yield CostOfRows(model=name, depth=depth, milliseconds=milliseconds)
            if is_over():
                break
        for followed in every:
            followed.forget()


def _measured(
    models: Mapping[str, Follower],
    depth: int,
    *,
    rounds: int,
    on_decode: Callable[[], None],
    is_over: Callable[[], bool],
) -> dict[str, dict[int, list[float]]]:
    """Return seconds of each decode by model and number of rows."""
    order = random.Random(depth)
    n_vocab = min((each.model.n_vocab for each in models.values()), default=0)
    text = [order.randrange(min(256, n_vocab - 1), n_vocab) for _ in range(depth + max(_WIDTHS))] if models else []
    for each in models.values():
        each.model.prefill(text[each.model.n_past : depth])
    seconds = {name: {n: list[float]() for n in _widths(each)} for name, each in models.items()}
    turns = [(name, n) for name, each in models.items() for n in _widths(each)]
    for turn in range(-_WARM_UP, rounds):
        for name, n in order.sample(turns, len(turns)):
            if is_over():
                return seconds
            model, rows = models[name].model, Tree.sequence(text[depth : depth + n])
            started = perf_counter()
            model.decode(rows)
            spent = perf_counter() - started
            model.rollback(depth)
            if turn >= 0:
                seconds[name][n].append(spent)
            on_decode()
    return seconds


def _widths(followed: Follower) -> list[int]:
    return [n for n in _WIDTHS if n <= followed.model.capabilities.max_rows]


def _with_room(model: TextModel, depth: int) -> dict[str, Follower]:
    """Return the models with room for rows at a depth, the target first: a head reads what it computes."""
    return {name: followed for name, followed in model.followed.items() if depth + max(_WIDTHS) <= followed.model.n_ctx}
