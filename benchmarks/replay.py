"""Recorded drafts against a cost curve: what the chooser would have reached, computed instead of measured."""

from __future__ import annotations

import json
import lzma
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from edge_spec.speculation.chooser import Chooser
from edge_spec.speculation.drafters.base import Drafter, WorthMore
from edge_spec.speculation.round import Round
from edge_spec.speculation.text import Text
from edge_spec.speculation.tree import EMPTY, Tree

__all__ = ["Curve", "Replay", "Reply", "fixed_speed", "read_recordings", "replayed_rounds"]

Curve = Callable[[int], float]
"""Seconds of a decode by its number of rows."""

Reply = Mapping[str, Any]
"""A line of a recording: ``truth``, token ids, and ``drafts``, for each of them tokens, parents and values."""

_WIDTHS = (1, 2, 4, 6, 8, 12, 16)


def read_recordings(folder: Path, temperature: float) -> dict[str, list[Reply]]:
    """The replies of all recordings of one temperature, by drafter: files NAME-tTEMPERATURE.jsonl, plain or .xz."""
    found: dict[str, list[Reply]] = {}
    end = f"-t{temperature:.1f}.jsonl"
    for path in sorted(folder.iterdir()):
        name = path.name.removesuffix(".xz")
        if name.endswith(end):
            text = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
            found[name.removesuffix(end)] = [json.loads(line) for line in text.decode().splitlines()]
    return found


class Replay(Drafter):
    """Drafts again what was recorded, and keeps the time that it would have taken.

    Args:
        replies: see ``Reply``.
        step_s: seconds of drafting a level; 0 for a table.

    Attributes:
        spent_s: seconds spent so far.
    """

    def __init__(self, name: str, replies: Sequence[Reply], step_s: float) -> None:
        self.call_s = 0.0
        self.name = name
        self.replies = replies
        self.step_s = step_s
        self.spent_s = 0.0
        self._reply = 0

    @property
    def followed(self) -> Mapping[str, Any]:
        # What costs nothing by the level is a table, and a table has no model.
        return {self.name: self} if self.step_s else {}

    @property
    def most_texts(self) -> int:
        return sys.maxsize

    def read(self, most: int | None = None) -> bool:
        return True

    def n_unread(self) -> int:
        return 0

    def at(self, reply: int) -> None:
        """Draft for another reply, whose text is its tokens alone."""
        self._reply = reply

    def draft_all_while(
        self, drafters: Sequence[Drafter], limits: Sequence[int], worth_more: WorthMore
    ) -> Sequence[Tree]:
        replays = [drafter for drafter in drafters if isinstance(drafter, Replay)]
        wholes = [_draft(replay.replies[replay._reply], len(replay.text)) for replay in replays]
        nodes: list[list[int]] = [[] for _ in replays]
        levels, n_levels = [whole.children(-1) for whole in wholes], 0
        drafts = [EMPTY] * len(replays)
        while any(levels) and n_levels < max(limits) and (not n_levels or worth_more(drafts)):
            for place, level in enumerate(levels):
                if level and n_levels < limits[place]:
                    nodes[place] += level
                    drafts[place] = _part(wholes[place], nodes[place])
                levels[place] = wholes[place].children(level[0]) if level else ()
            n_levels += 1
        # A model drafts a level of all texts in one decode.
        self.spent_s += n_levels * self.step_s + len(replays) * self.call_s
        return [
            draft.best(limit) if draft.values else draft.first(limit)
            for draft, limit in zip(drafts, limits, strict=True)
        ]


def replayed_rounds(
    replays: Sequence[Replay],
    curve: Curve,
    *,
    own_s: float,
    greedy: bool,
    first: Curve | None = None,
    call_s: float = 0.0,
    look_s: float = 0.0,
    n_texts: int = 1,
) -> Iterator[tuple[int, float]]:
    """Tokens and seconds of each round if the chooser had chosen among recorded drafters.

    Args:
        curve: of the target.
        own_s: bookkeeping and sampling of a round, for each text.
        greedy: whether the replies were written at temperature 0.
        first: what the chooser takes for the curve before it has measured anything; the curve itself by default.
        call_s: seconds that asking all drafters of a text takes, beside those of the levels.
        look_s: seconds of choosing and learning from one look of the chooser at its clock to the next.
        n_texts: how many texts share a decode. Where one ends, the next reply begins.
    """
    n_looks = 0
    company = [
        replays,
        *([Replay(each.name, each.replies, each.step_s) for each in replays] for _ in range(n_texts - 1)),
    ]
    for replay in chain.from_iterable(company):
        replay.call_s = call_s / len(replays)

    def now() -> float:
        return sum(replay.spent_s for replay in chain.from_iterable(company)) + n_looks * look_s

    def clock() -> float:
        nonlocal n_looks
        n_looks += 1
        return now()

    seconds = {n: (first or curve)(n) for n in _WIDTHS}
    choosers = [Chooser(own, seconds=seconds, clock=clock) for own in company]
    for chooser in choosers[1:]:
        chooser.join(choosers[0])
    settings = SimpleNamespace(temperature=0.0 if greedy else 1.0)
    sampler: Any = SimpleNamespace(settings=settings, has_grammar=False)
    waiting = iter(enumerate(replays[0].replies))
    texts: list[tuple[Text, Sequence[int]]] = [(Text(), ())] * n_texts
    while True:
        for place, (text, truth) in enumerate(texts):
            if len(text) < len(truth):
                continue
            number, reply = next(waiting, (0, None))
            if reply is None:
                return
            texts[place] = Text(), reply["truth"]
            for replay in company[place]:
                replay.at(number)
            choosers[place].begin(texts[place][0], sampler)
        began, rounds = now(), list[Round]()
        if n_texts == 1:
            drafts: Sequence[Tree] = [choosers[0].draft(choosers[0].most)]
        else:
            n_rows = _WIDTHS[-1] - n_texts
            drafts = choosers[0].draft_all(choosers, [n_rows] * n_texts, n_rows)
        draft_s, verify_s = now() - began, curve(n_texts + sum(map(len, drafts)))
        for (text, truth), draft in zip(texts, drafts, strict=True):
            place = len(text)
            n_accepted = len(draft.descend(truth[place:]))
            tokens = tuple(truth[place : place + n_accepted + 1])
            text.tokens += tokens
            counts, n_rows = draft.counts_by_depth() if draft else (), len(draft) + 1
            part_s = draft_s / n_texts, verify_s / n_texts, own_s
            rounds.append(Round(tokens, n_accepted, counts, n_rows, *part_s))
        choosers[0].learn_all(choosers, rounds)
        yield sum(len(done.tokens) for done in rounds), now() - began + verify_s + n_texts * own_s


def fixed_speed(replay: Replay, size: int, curve: Curve, *, own_s: float) -> float:
    """Tokens per second if every round had verified the best ``size`` nodes of what was recorded."""
    n_tokens, seconds = 0, 0.0
    for reply in replay.replies:
        truth, place = reply["truth"], 0
        while place < len(truth):
            draft = _draft(reply, place).best(size)
            n = min(len(draft.descend(truth[place:])) + 1, len(truth) - place)
            n_levels = len(draft.counts_by_depth()) if draft else 0
            seconds += curve(len(draft) + 1) + n_levels * replay.step_s + own_s
            n_tokens, place = n_tokens + n, place + n
    return n_tokens / seconds


def _draft(reply: Reply, place: int) -> Tree:
    drafts = reply["drafts"]
    return Tree(*map(tuple, drafts[place])) if place < len(drafts) else EMPTY


def _part(tree: Tree, nodes: Sequence[int]) -> Tree:
    """Some nodes of a tree, each behind its parent."""
    places = {-1: -1, **{node: place for place, node in enumerate(nodes)}}
    return Tree(
        tuple(tree.tokens[node] for node in nodes),
        tuple(places[tree.parents[node]] for node in nodes),
        tuple(tree.values[node] for node in nodes) if tree.values else (),
    )
