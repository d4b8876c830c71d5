"""Laws of the chooser over recorded drafts: near the best choice in hindsight, and never below plain decoding.

The recordings in ``traces`` are of the demo family: what ``benchmarks/record_drafts.py`` wrote for its target with the
intermediate model as drafter, over 16 of the package's own prompts. In its folders are SmolLM2 with its head, Gemma 3
270M with n-grams, and the demo's target enlarged to 1.0B with its family, over eight development questions (six of the
last). Time is computed from cost curves, never measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from replay import Replay, fixed_speed, read_recordings, replayed_rounds

TRACES = Path(__file__).parent / "traces"
CURVES: dict[str, Mapping[int, float]] = {
    "rows that cost little": {1: 19.3, 4: 21.8, 6: 26.5, 8: 29.4, 16: 56.3},
    "rows that cost much": {1: 20.0, 4: 52.3, 6: 81.9, 8: 95.5, 16: 139.4},
    "rows for nothing": {1: 20.0, 16: 20.0},
    "a cliff at the second row": {1: 20.0, 2: 42.0, 16: 56.0},
    "rows in groups of four": {1: 20.0, 2: 27.0, 4: 27.0, 5: 42.0, 8: 42.0, 9: 57.0, 12: 57.0, 13: 72.0, 16: 72.0},
    "every row as much as the first": {1: 20.0, 16: 320.0},
}
"""Milliseconds of a decode by its number of rows, as measured on two engines and as they might be on others."""

OWN_S = 0.4e-3
STEP_S = 0.3e-3
CALL_S = 0.1e-3
WARM_UP = 30


def seconds(points: Mapping[int, float], n: int) -> float:
    above = min(width for width in points if width >= n)
    below = max(width for width in points if width <= n)
    share = (n - below) / (above - below) if above > below else 0.0
    return (points[below] + share * (points[above] - points[below])) / 1e3


def speed(rounds: Sequence[tuple[int, float]]) -> float:
    """Tokens per second of rounds."""
    return sum(n for n, _ in rounds) / sum(s for _, s in rounds)


@pytest.mark.long
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("name", CURVES)
def test_the_chooser_is_near_the_best_choice_in_hindsight(name: str, temperature: float) -> None:
    def curve(n: int) -> float:
        return seconds(CURVES[name], n)

    replays = {
        drafter: Replay(drafter, replies, 0.0 if drafter == "ngram" else STEP_S)
        for drafter, replies in read_recordings(TRACES, temperature).items()
    }
    assert set(replays) == {"ngram", "sequence"}
    plain = 1 / (curve(1) + OWN_S)
    fixed = [fixed_speed(replay, n, curve, own_s=OWN_S) for replay in replays.values() for n in range(1, 10)]
    rounds = list(replayed_rounds(list(replays.values()), curve, own_s=OWN_S, greedy=temperature == 0))
    assert sum(n for n, _ in rounds) == sum(len(reply["truth"]) for reply in replays["ngram"].replies)
    assert speed(rounds) > 0.95 * max(plain, *fixed)
    assert speed(rounds[WARM_UP:]) > 0.99 * plain


@pytest.mark.long
@pytest.mark.parametrize("n_texts", [2, 4])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("name", CURVES)
@pytest.mark.parametrize("folder", ["smollm2", "demo-1b"])
def test_texts_in_company_lose_neither_against_plain_ones_nor_one_by_one(
    folder: str, name: str, temperature: float, n_texts: int
) -> None:
    def curve(n: int) -> float:
        return seconds(CURVES[name], n)

    def drafting(n: int) -> float:
        replays = [
            Replay(drafter, 2 * replies, 0.0 if drafter == "ngram" else STEP_S)
            for drafter, replies in read_recordings(TRACES / folder, temperature).items()
        ]
        costs = {"own_s": OWN_S, "call_s": CALL_S}
        return speed(list(replayed_rounds(replays, curve, greedy=temperature == 0, n_texts=n, **costs)))

    plain = n_texts / (curve(n_texts) + n_texts * OWN_S)
    assert drafting(n_texts) > 0.97 * max(plain, drafting(1))


@pytest.mark.long
@pytest.mark.parametrize("factor", [6.0, 0.25])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("name", ["rows that cost much", "rows in groups of four", "every row as much as the first"])
@pytest.mark.parametrize("n_texts", [1, 2, 4])
def test_seconds_of_another_day_mislead_no_texts_in_company(
    n_texts: int, name: str, temperature: float, factor: float
) -> None:
    """All widths were measured too slow or too fast alike, and only some of them are decoded."""

    def curve(n: int) -> float:
        return seconds(CURVES[name], n)

    def drafting(factor: float) -> float:
        replays = [
            Replay(drafter, replies, 0.0 if drafter == "ngram" else STEP_S)
            for drafter, replies in read_recordings(TRACES / "demo-1b", temperature).items()
        ]
        asked = {"own_s": OWN_S, "call_s": CALL_S, "greedy": temperature == 0, "n_texts": n_texts}
        return speed(list(replayed_rounds(replays, curve, first=lambda n: factor * curve(n), **asked)))

    assert drafting(factor) > 0.93 * drafting(1)


@pytest.mark.long
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("name", CURVES)
def test_a_table_alone_is_asked_where_that_pays(name: str, temperature: float) -> None:
    def curve(n: int) -> float:
        return seconds(CURVES[name], n)

    table = Replay("ngram", 3 * list(read_recordings(TRACES, temperature)["ngram"]), 0.0)
    plain = 1 / (curve(1) + OWN_S)
    fixed = [fixed_speed(table, n, curve, own_s=OWN_S) for n in range(1, 10)]
    rounds = list(replayed_rounds([table], curve, own_s=OWN_S, greedy=temperature == 0, call_s=CALL_S))
    assert speed(rounds) > 0.97 * max(plain, *fixed)
    assert speed(rounds) > 0.99 * plain


LINE = {"a line": {1: 20.0, 16: 95.0}}


@pytest.mark.long
@pytest.mark.parametrize("factor", [1.0, 2.0, 0.5])
@pytest.mark.parametrize(
    "name", ["rows that cost little", "a cliff at the second row", "every row as much as the first", *LINE]
)
def test_asking_costs_and_a_wrong_first_curve_do_not_lead_below_plain_decoding(name: str, factor: float) -> None:
    """Every round in which drafters are asked costs something."""

    def curve(n: int) -> float:
        return seconds((CURVES | LINE)[name], n)

    replays = [
        Replay(drafter, replies, 0.0 if drafter == "ngram" else STEP_S)
        for drafter, replies in read_recordings(TRACES, 0.8).items()
    ]
    plain = 1 / (curve(1) + OWN_S)
    best = max(plain, *(fixed_speed(replay, n, curve, own_s=OWN_S) for replay in replays for n in range(1, 10)))
    asked = {"own_s": OWN_S, "greedy": False, "call_s": CALL_S}
    rounds = list(replayed_rounds(replays, curve, first=lambda n: factor * curve(n), **asked))
    assert speed(rounds[WARM_UP:]) > 0.985 * plain
    assert speed(rounds) > (0.97 if factor == 1 else 0.87) * best


@pytest.mark.long
@pytest.mark.parametrize("first", ["rows that cost much", "rows for nothing", "a cliff at the second row"])
@pytest.mark.parametrize("name", ["rows that cost little", "rows that cost much", "rows for nothing", *LINE])
def test_a_first_curve_of_another_shape_is_corrected(name: str, first: str) -> None:
    """Never below plain decoding, and soon as good as with the right one."""

    def curve(n: int) -> float:
        return seconds((CURVES | LINE)[name], n)

    speeds = []
    for begun in (CURVES[first], (CURVES | LINE)[name]):
        replays = [
            Replay(drafter, 2 * replies, 0.0 if drafter == "ngram" else STEP_S)
            for drafter, replies in read_recordings(TRACES, 0.8).items()
        ]
        rounds = list(
            replayed_rounds(
                replays, curve, own_s=OWN_S, greedy=False, call_s=CALL_S, first=lambda n, begun=begun: seconds(begun, n)
            )
        )
        speeds.append(speed(rounds[WARM_UP:]))
    assert speeds[0] > 0.99 / (curve(1) + OWN_S)
    assert speeds[0] > 0.92 * speeds[1]


def test_siblings_are_worth_their_rows_where_rows_are_cheap() -> None:
    def curve(n: int) -> float:
        return seconds(CURVES["rows for nothing"], n)

    (replies,) = (found for name, found in read_recordings(TRACES, 0.8).items() if name == "sequence")
    paths = [{**reply, "drafts": [path_of(*draft) for draft in reply["drafts"]]} for reply in replies]
    speeds = []
    for drafts in (replies, paths):
        rounds = list(replayed_rounds([Replay("sequence", drafts, STEP_S)], curve, own_s=OWN_S, greedy=False))
        speeds.append(speed(rounds))
    assert speeds[0] > 1.05 * speeds[1]


def path_of(tokens: list[int], parents: list[int], values: list[float]) -> list[list[float]]:
    """The likeliest path of a recorded tree: its best child stands first."""
    path: list[int] = []
    for node, parent in enumerate(parents):
        if parent == (path[-1] if path else -1):
            path.append(node)
    return [[tokens[n] for n in path], list(range(-1, len(path) - 1)), [values[n] for n in path]]


LEVEL_S = {"ngram": 0.0, "sequence": 0.3e-3, "hierarchy": 1.2e-3}


@pytest.mark.long
@pytest.mark.parametrize("factor", [1.0, 2.0, pytest.param(0.5, marks=pytest.mark.slow)])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize(("model", "times", "least"), [("smollm2", 3, 0.96), ("gemma3", 3, 0.96), ("demo-1b", 9, 0.93)])
def test_other_models_are_near_the_best_choice_as_well(
    model: str, times: int, least: float, temperature: float, factor: float
) -> None:
    """Of the last one there are fewest tokens, and three drafters to be tried."""
    for points in CURVES.values():

        def curve(n: int, points: Mapping[int, float] = points) -> float:
            return seconds(points, n)

        replays = [
            Replay(drafter, times * list(replies), LEVEL_S[drafter])
            for drafter, replies in read_recordings(TRACES / model, temperature).items()
        ]
        plain = 1 / (curve(1) + OWN_S)
        best = max(plain, *(fixed_speed(replay, n, curve, own_s=OWN_S) for replay in replays for n in range(1, 10)))
        rounds = list(
            replayed_rounds(
                replays,
                curve,
                own_s=OWN_S,
                greedy=temperature == 0,
                call_s=CALL_S,
                first=lambda n, curve=curve: factor * curve(n),  # type: ignore[misc]
            )
        )
        assert speed(rounds[WARM_UP:]) > 0.98 * plain
        assert speed(rounds) > least * best or factor != 1


PROCESSORS = {
    "AMD EPYC": {1: 2.65, 2: 2.95, 3: 3.15, 4: 3.2, 5: 3.7, 7: 4.3, 16: 7.0},
    "AMD Zen 5": {1: 3.51, 2: 3.84, 4: 4.07, 8: 4.9, 16: 6.78},
}
"""Milliseconds of a decode of SmolLM2 on our engine, on two cores each."""

SMALL = {"own_s": 0.1e-3, "call_s": 0.03e-3, "look_s": 0.016e-3}
HEAD_S = 0.45e-3


@pytest.mark.long
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("name", PROCESSORS)
def test_where_a_table_knows_nothing_the_head_is_asked(name: str, temperature: float) -> None:
    """Though the table was better in the round before, and choosing takes a percent of a round or two."""

    def curve(n: int) -> float:
        return seconds(PROCESSORS[name], n)

    replays = [
        Replay(drafter, 3 * replies, 0.0 if drafter == "ngram" else HEAD_S)
        for drafter, replies in read_recordings(TRACES / "smollm2", temperature).items()
    ]
    best = max(fixed_speed(replay, n, curve, own_s=SMALL["own_s"]) for replay in replays for n in range(1, 10))
    rounds = list(replayed_rounds(replays, curve, greedy=temperature == 0, **SMALL))
    assert speed(rounds) > 0.97 * best
    most_plain = curve(1) + SMALL["own_s"] + 0.2e-3
    assert sum(s < most_plain for _, s in rounds) < 0.05 * len(rounds)
