"""Recorded drafts against a cost curve: what the chooser would have reached, computed instead of measured."""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from edge_spec.speculation.chooser import Chooser
from edge_spec.speculation.drafters.base import Drafter
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

    def read(self, most: int | None = None) -> bool:
        return True

    def n_unread(self) -> int:
        return 0

    def at(self, reply: int) -> None:
        """Draft for another reply, whose text is its tokens alone."""
        self._reply = reply

    def draft(self, limit: int) -> Tree:
        return self.draft_while(limit, lambda draft: True)

    def draft_while(self, limit: int, worth_more: Callable[[Tree], bool]) -> Tree:
        whole = _draft(self.replies[self._reply], len(self.text))
        nodes: list[int] = []
        best, draft, n_levels = -1, EMPTY, 0
        while (level := whole.children(best)) and n_levels < limit and (not nodes or worth_more(draft)):
            nodes += level
            best, draft, n_levels = level[0], _part(whole, nodes), n_levels + 1
        self.spent_s += n_levels * self.step_s + self.call_s
        return draft.best(limit) if draft.values else draft.first(limit)


def replayed_rounds(
    replays: Sequence[Replay],
    curve: Curve,
    *,
    own_s: float,
    greedy: bool,
    first: Curve | None = None,
    call_s: float = 0.0,
    look_s: float = 0.0,
) -> Iterator[tuple[int, float]]:
    """Tokens and seconds of each round if the chooser had chosen among recorded drafters.

    Args:
        curve: of the target.
        own_s: bookkeeping and sampling of a round.
        greedy: whether the replies were written at temperature 0.
        first: what the chooser takes for the curve before it has measured anything; the curve itself by default.
        call_s: seconds that asking all drafters takes, beside those of the levels.
        look_s: seconds of choosing and learning from one look of the chooser at its clock to the next.
    """
    n_looks = 0
    for replay in replays:
        replay.call_s = call_s / len(replays)

    def now() -> float:
        return sum(replay.spent_s for replay in replays) + n_looks * look_s

    def clock() -> float:
        nonlocal n_looks
        n_looks += 1
        return now()

    chooser = Chooser(replays, seconds={n: (first or curve)(n) for n in _WIDTHS}, clock=clock)
    settings = SimpleNamespace(temperature=0.0 if greedy else 1.0)
    sampler: Any = SimpleNamespace(settings=settings, has_grammar=False)
    for number, reply in enumerate(replays[0].replies):
        truth, text = reply["truth"], Text()
        for replay in replays:
            replay.at(number)
        chooser.begin(text, sampler)
        while len(text) < len(truth):
            began, place = now(), len(text)
            draft = chooser.draft(chooser.most)
            n_accepted = len(draft.descend(truth[place:]))
            tokens = tuple(truth[place : place + n_accepted + 1])
            draft_s, verify_s = now() - began, curve(len(draft) + 1)
            counts = draft.counts_by_depth() if draft else ()
            text.tokens += tokens
            chooser.learn(Round(tokens, n_accepted, counts, len(draft) + 1, draft_s, verify_s, own_s))
            yield len(tokens), now() - began + verify_s + own_s


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
