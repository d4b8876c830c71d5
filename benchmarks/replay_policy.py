"""Replays recorded drafts against cost curves: what any policy would have reached, in seconds instead of hours.

    python benchmarks/replay_policy.py TRACES [--curve ours|llama|flat|cliff|fours|0.25 ...] [--json]

TRACES is a folder of recordings, NAME-tTEMPERATURE.jsonl (plain or .xz), one per drafter: JSON objects with ``truth``,
the token ids that the target wrote, and ``drafts``, for each of their places the tokens, parents and values of what a
drafter would have drafted there. Time is computed, not measured: a decode of n rows costs what the
curve says, each drafted level what its drafter costs. Printed are speeds relative to plain decoding: of the best fixed
size in hindsight, and of the adaptive policy, over all rounds and after the first 30. ``intermediate`` is the recorded
chain with the siblings along it that the recorded tree has, as ``auto`` drafts them.
"""

from __future__ import annotations

import argparse
import json
import lzma
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from edge_spec.speculation.adaptive import AdaptiveDrafter, AdaptivePolicy
from edge_spec.speculation.drafters.base import Drafter
from edge_spec.speculation.round import Round
from edge_spec.speculation.tree import EMPTY, Tree

Curve = Callable[[int], float]
OWN_S = 0.4e-3
"""Bookkeeping and sampling of a round."""

STEP_S = {"intermediate": 0.3e-3, "intermediate-chain": 0.3e-3, "draft-chain": 0.35e-3, "ngram": 0.0}
"""Of a level."""

OFFERS = (
    ["intermediate-chain"],
    ["intermediate"],
    ["ngram"],
    ["intermediate-chain", "ngram"],
    ["intermediate", "ngram"],
    ["intermediate", "draft-chain", "ngram"],
)
"""What the policy chooses among."""
WARM_UP = 30
_MEASURED = {
    "ours": {1: 19.3, 4: 21.8, 6: 26.5, 8: 29.4, 16: 56.3},
    "llama": {1: 20.0, 4: 52.3, 6: 81.9, 8: 95.5, 16: 139.4},
    "flat": {1: 20.0, 16: 20.0},
    "cliff": {1: 20.0, 2: 42.0, 16: 56.0},
    "fours": {1: 20.0, 2: 27.0, 4: 27.0, 5: 42.0, 8: 42.0, 9: 57.0, 12: 57.0, 13: 72.0, 16: 72.0},
}


def curve_of(name: str) -> Curve:
    """A named curve, or a line of the given slope."""
    points = _MEASURED.get(name) or {1: 20.0, 16: 20.0 * (1 + 15 * float(name))}
    widths = sorted(points)

    def seconds(n: int) -> float:
        above = next((width for width in widths if width >= n), widths[-1])
        below = max((width for width in widths if width <= n), default=widths[0])
        share = (n - below) / (above - below) if above > below else 0.0
        return (points[below] + share * (points[above] - points[below])) / 1e3

    return seconds


class Recording(Drafter):
    """Drafts again what was recorded, and keeps the time that it would have taken."""

    def __init__(self, name: str, replies: Sequence[Mapping[str, Any]]) -> None:
        self.name = name
        self.replies = replies
        self.spent_s = 0.0
        self._reply = self._place = 0

    @property
    def followed(self) -> Mapping[str, Any]:
        return {self.name: self} if STEP_S[self.name] else {}

    def at(self, reply: int) -> None:
        """Go to the beginning of a reply."""
        self._reply, self._place = reply, 0

    def _recorded(self) -> Tree:
        drafts = self.replies[self._reply]["drafts"]
        return Tree(*map(tuple, drafts[self._place])) if self._place < len(drafts) else EMPTY

    def draft(self, limit: int) -> Tree:
        return self.draft_while(limit, lambda draft: True)

    def draft_while(self, limit: int, worth_more: Callable[[Tree], bool]) -> Tree:
        whole = self._recorded()
        nodes: list[int] = []
        best, draft, n_levels = -1, EMPTY, 0
        while (level := whole.children(best)) and n_levels < limit and (not nodes or worth_more(draft)):
            nodes += level
            best, draft, n_levels = level[0], part(whole, nodes), n_levels + 1
        self.spent_s += n_levels * STEP_S[self.name]
        return draft.best(limit) if draft.values else draft.first(limit)

    def accept(self, tokens: Sequence[int]) -> None:
        self._place += len(tokens)


def rounds(
    policy: Any, drafter: Drafter, recordings: Sequence[Recording], curve: Curve, *, greedy: bool
) -> Iterator[tuple[int, float]]:
    """Tokens and seconds of each round."""
    sampler: Any = SimpleNamespace(settings=SimpleNamespace(temperature=0.0 if greedy else 0.8))
    for number, reply in enumerate(recordings[0].replies):
        truth = reply["truth"]
        for recording in recordings:
            recording.at(number)
        drafter.begin((), sampler)
        place = 0
        while place < len(truth):
            for recording in recordings:
                recording.spent_s = 0.0
            limit = policy.limit()
            draft = drafter.draft(limit) if limit else EMPTY
            path = draft.descend(truth[place:])
            tokens = tuple(truth[place : place + len(path) + 1])
            draft_s = sum(recording.spent_s for recording in recordings)
            verify_s = curve(len(draft) + 1)
            drafter.accept(tokens)
            policy.learn(
                Round(
                    tokens,
                    len(path),
                    draft.counts_by_depth() if draft else (),
                    len(draft) + 1,
                    draft_s,
                    verify_s,
                    OWN_S,
                )
            )
            place += len(tokens)
            yield len(tokens), draft_s + verify_s + OWN_S


def part(tree: Tree, nodes: Sequence[int]) -> Tree:
    """Some nodes of a tree, each behind its parent."""
    places = {-1: -1, **{node: place for place, node in enumerate(nodes)}}
    return Tree(
        tuple(tree.tokens[node] for node in nodes),
        tuple(places[tree.parents[node]] for node in nodes),
        tuple(tree.values[node] for node in nodes) if tree.values else (),
    )


def fixed(recording: Recording, size: int, curve: Curve) -> float:
    """Tokens per second of drafts of one size."""
    tokens, seconds = 0, 0.0
    for reply in recording.replies:
        truth, place = reply["truth"], 0
        while place < len(truth):
            draft = Tree(*map(tuple, reply["drafts"][place])).best(size)
            n = min(len(draft.descend(truth[place:])) + 1, len(truth) - place)
            n_levels = len(draft.counts_by_depth()) if draft else 0
            seconds += curve(len(draft) + 1) + n_levels * STEP_S[recording.name] + OWN_S
            tokens, place = tokens + n, place + n
    return tokens / seconds


def read(folder: Path, name: str, temperature: str) -> list[dict[str, Any]]:
    """The replies of a recording."""
    path = folder / f"{name}-t{temperature}.jsonl"
    if path.is_file():
        return [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    with lzma.open(path.with_name(path.name + ".xz"), "rt") as lines:
        return [json.loads(line) for line in lines]


def with_siblings(chain: Sequence[Any], tree: Sequence[Any]) -> list[list[Any]]:
    """A recorded chain, and the siblings along it that a recorded tree has."""
    path, recorded = Tree(*map(tuple, chain)), Tree(*map(tuple, tree))
    tokens: list[int] = []
    parents: list[int] = []
    values: list[float] = []
    above, met = -1, -1
    for token, value in zip(path.tokens, path.values, strict=True):
        siblings = recorded.children(met) if met is not None else ()
        level = [(token, value), *((recorded.tokens[n], recorded.values[n]) for n in siblings)]
        level = [(t, v) for place, (t, v) in enumerate(level) if place == 0 or t != token]
        met = recorded.child(met, token) if met is not None else None
        most = values[above] if above >= 0 else 1.0
        tokens += [t for t, _ in level]
        parents += [above] * len(level)
        values += [min(v, most) for _, v in level]
        above = len(tokens) - len(level)
    return [tokens, parents, values]


def read_all(folder: Path, temperature: str) -> dict[str, list[dict[str, Any]]]:
    """The replies of all recordings of one temperature, by drafter."""
    found = {name: read(folder, name, temperature) for name in STEP_S if name != "intermediate"}
    chains, trees = found["intermediate-chain"], read(folder, "intermediate-tree", temperature)
    found["intermediate"] = [
        {"truth": chain["truth"], "drafts": list(map(with_siblings, chain["drafts"], tree["drafts"]))}
        for chain, tree in zip(chains, trees, strict=True)
    ]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path)
    parser.add_argument("--curve", action="append", help="a named curve, or the slope of a line")
    parser.add_argument("--json", action="store_true", help="one object per line")
    options = parser.parse_args()
    slopes = [f"{slope / 100:g}" for slope in range(5, 70, 10)]
    for temperature in ("0.8", "0.0"):
        replies = read_all(options.traces, temperature)
        for name in options.curve or [*_MEASURED, *slopes]:
            curve = curve_of(name)
            plain = 1 / (curve(1) + OWN_S)
            sizes = {
                f"{drafter} {n}": fixed(Recording(drafter, replies[drafter]), n, curve) / plain
                for drafter in STEP_S
                for n in range(1, 10)
            }
            best = max([("plain", 1.0), *sizes.items()], key=lambda item: item[1])
            found: dict[str, Any] = {"curve": name, "temperature": float(temperature)}
            found |= {"best_fixed": best[0], "best_fixed_speed_up": round(best[1], 3)}
            for drafters in OFFERS:
                recordings = [Recording(drafter, replies[drafter]) for drafter in drafters]
                policy = AdaptivePolicy(seconds={n: curve(n) for n in (1, 2, 4, 6, 8, 12, 16)})
                done = list(
                    rounds(policy, AdaptiveDrafter(recordings, policy), recordings, curve, greedy=temperature == "0.0")
                )
                found["+".join(drafters)] = tuple(
                    round(sum(n for n, _ in part) / sum(s for _, s in part) / plain, 3)
                    for part in (done, done[WARM_UP:])
                )
            print(
                json.dumps(found) if options.json else "  ".join(f"{key} {value}" for key, value in found.items()),
                flush=True,
            )


if __name__ == "__main__":
    main()
