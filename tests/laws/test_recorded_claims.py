"""Laws of recorded claims: what drafters claim, calibrated, is how often it comes true.

The recordings in ``claims`` are of the demo family: what ``benchmarks/record_drafts.py`` wrote at temperatures 0 and
0.8 for the prompts beside them, 24 of which are the package's own. They are read in order, as one run would meet them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from replay import Replay, read_recordings

from edge_spec.speculation.chooser.candidate import Candidate
from edge_spec.speculation.tree import Tree

CLAIMS = Path(__file__).parent / "claims"
AGREES = 0.05
CHANCE = 0.05
"""Of the two tails together: a band is refused where so little of the sampling error would explain it."""

LAST_RANK = 2
BANDS = 10


class Claim(NamedTuple):
    """Of a drafted token whose predecessors were accepted, before it was known whether it is.

    Attributes:
        rank: among its siblings; of tables its depth.
    """

    rank: int
    said: float
    calibrated: float
    came_true: bool


@cache
def recorded(temperature: float) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    return read_recordings(CLAIMS, temperature)


def claims(drafter: str, temperature: float) -> Iterator[Claim]:
    """Yield what a drafter claimed in the rounds of a run that verifies all that it drafts."""
    by_depth = drafter == "ngram"
    candidate = Candidate(Replay(drafter, recorded(temperature)[drafter], 0.0 if by_depth else 1e-3))
    candidate.draft_for((), [temperature == 0])
    for reply in recorded(temperature)[drafter]:
        truth, place = reply["truth"], 0
        while place < len(truth):
            draft, text = Tree(*map(tuple, reply["drafts"][place])), truth[place:]
            accepted = draft.descend(text)
            if draft:
                calibrated = candidate.values(draft)
                for depth, parent in enumerate([-1, *accepted][: len(text)]):
                    for place_of, node in enumerate(draft.children(parent)):
                        above = (draft.values[parent], calibrated[parent]) if parent >= 0 else (1.0, 1.0)
                        yield Claim(
                            rank=min(depth if by_depth else place_of, LAST_RANK),
                            said=draft.values[node] / above[0] if above[0] else 0.0,
                            calibrated=calibrated[node] / above[1],
                            came_true=draft.tokens[node] == text[depth],
                        )
                candidate.drafts = (draft,)
                candidate.learn_outcome(text)
            place += len(accepted) + 1


def bands(of_claims: Iterable[tuple[int, float, bool]]) -> dict[tuple[int, int], list[tuple[float, bool]]]:
    """Chances and whether they came true, by rank and tenth."""
    found: dict[tuple[int, int], list[tuple[float, bool]]] = {}
    for rank, chance, came_true in of_claims:
        found.setdefault((rank, min(int(BANDS * chance), BANDS - 1)), []).append((chance, came_true))
    return found


def agrees(band: Sequence[tuple[float, bool]]) -> bool:
    """Return whether so many come true with a chance of ``CHANCE`` if all are wrong by ``AGREES`` at most."""
    chances = np.array([chance for chance, _ in band])
    n_true = sum(came_true for _, came_true in band)
    few = how_many(np.maximum(chances - AGREES, 0))[: n_true + 1].sum()
    many = how_many(np.minimum(chances + AGREES, 1))[n_true:].sum()
    return bool(min(few, many) > CHANCE / 2)


def how_many(chances: np.ndarray) -> np.ndarray:
    """The distribution of how many of independent events happen."""
    found = np.ones(1)
    for chance in chances:
        found = np.convolve(found, (1 - chance, chance))
    return found


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("drafter", ["hierarchy", "sequence", "ngram"])
def test_recorded_claims_come_true_as_often_as_calibrated(drafter: str, temperature: float) -> None:
    """Within 0.05 and the sampling error in every tenth, for every rank among siblings."""
    found = bands((each.rank, each.calibrated, each.came_true) for each in claims(drafter, temperature))
    assert [place for place, band in found.items() if not agrees(band)] == []


@pytest.mark.parametrize("drafter", ["hierarchy", "sequence", "ngram"])
def test_what_drafters_say_of_greedy_replies_does_not_come_true_as_often(drafter: str) -> None:
    """The law is one that claims can break."""
    found = bands((each.rank, each.said, each.came_true) for each in claims(drafter, 0.0))
    assert not all(map(agrees, found.values()))
