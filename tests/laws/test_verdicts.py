"""Laws of what bench concludes: which mode is the best, how far it is from its limit, and what medians leave out."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from edge_spec.evaluation.bench import Speed, speed_of, verdict_of
from edge_spec.generation.reply import Reply
from edge_spec.speculation.statistics import Statistics


def test_the_mode_that_is_significantly_faster_is_the_best() -> None:
    """A mode is not called faster for a lead that other runs like these might not have."""

    def speed(mode: str, speed_up: float, low: float) -> Speed:
        return Speed(
            mode=mode,
            tokens_per_s=1,
            speed_up=speed_up,
            total_speed_up=speed_up,
            interval=(low, 3),
            mean_length=2,
            drafted=100,
            acceptance=0.5,
            draft_rounds=0.9,
            draft_share=0.1,
            verify_share=0.8,
            rest_share=0.1,
            share_of_limit=speed_up / 2,
            drafter="draft",
            shape="chain",
            rows=4,
            same_text=mode != "wrong",
        )

    off, auto, doubtful = speed("off", 1, 1), speed("auto", 1.6, 1.5), speed("ngram", 1.7, 0.9)
    assert verdict_of([off, doubtful]).best is off
    found = verdict_of([off, auto, doubtful, speed("tree", 1.4, 1.3), speed("sequence", 1.5, 1.1)])
    assert (found.best.mode, found.best.speed_up, found.auto, found.same_text) == ("sequence", 1.5, auto, True)
    told = found.as_json()
    assert (told["best"], told["speed_up"], told["interval"], told["auto"]) == ("sequence", 1.5, (1.1, 3), 1.6)
    assert (told["drafter"], told["shape"], told["rows"], told["share_of_limit"]) == ("draft", "chain", 4, 0.75)
    assert not verdict_of([off, speed("wrong", 2, 2)]).same_text


def timed(*runs: tuple[int, float]) -> list[Reply]:
    """Replies of so many tokens in so many seconds each."""
    replies: Any = [
        SimpleNamespace(statistics=Statistics(tokens=n, rounds=n, verify_s=seconds), token_ids=[0] * n)
        for n, seconds in runs
    ]
    return list(replies)


def test_a_reply_that_copies_counts_in_the_total_and_hardly_in_the_median() -> None:
    plain = timed((100, 10.0), (100, 10.0), (100, 10.0))
    found = speed_of("ngram", timed((100, 10.0), (100, 8.0), (100, 2.0)), plain=plain)
    assert found.speed_up == pytest.approx(10 / 8)
    assert found.total_speed_up == pytest.approx(30 / 20)
    # Where replies differ in length, tokens per second are compared and not seconds.
    found = speed_of("ngram", timed((50, 5.0), (100, 10.0), (10, 1.0)), plain=plain)
    assert (found.speed_up, found.total_speed_up) == (pytest.approx(1), pytest.approx(1))


def test_the_limit_is_what_acceptance_alone_would_bring() -> None:
    """Thirty tokens in ten rounds, at most three times as fast; drafts and their rows leave half of that."""

    def of(seconds: tuple[float, float, float, float], n_rounds: int, rows: dict[int, int]) -> list[Reply]:
        draft_s, verify_s, sample_s, rest_s = seconds
        made = Statistics(
            tokens=30,
            rounds=n_rounds,
            draft_s=draft_s,
            verify_s=verify_s,
            sample_s=sample_s,
            rest_s=rest_s,
            drafters=Counter({"repeat": sum(rows.values())} if rows else {}),
            rows=Counter(rows),
            drafted=2 * sum(rows.values()),
            accepted=sum(rows.values()),
        )
        reply: Any = SimpleNamespace(statistics=made, token_ids=[0] * 30)
        return [reply]

    plain = of((0, 27, 2, 1), 30, {})
    found = speed_of("mine", of((4, 14, 1, 1), 10, {4: 3, 6: 6}), plain=plain)
    assert (found.mean_length, found.speed_up, found.share_of_limit) == (3, 1.5, 0.5)
    assert (found.draft_share, found.verify_share, found.rest_share) == (0.2, 0.7, pytest.approx(0.1))
    assert (found.drafter, found.shape, found.rows) == ("repeat", "chain", 6)
    assert (found.drafted, found.acceptance, found.draft_rounds) == (18, 0.5, 0.9)
    off = speed_of("off", plain, plain=plain)
    assert (off.share_of_limit, off.drafter, off.shape, off.rows) == (1, "", "", 1)


@pytest.mark.parametrize("slower", [1, 1.5, 10])
def test_no_mode_exceeds_its_limit_on_a_machine_that_was_busy(slower: float) -> None:
    """Where plain decoding alone was slowed, what drafting took is still what a mode is from its limit at least."""
    (plain,), (run,) = timed((30, 27 * slower)), timed((30, 16))
    run.statistics.rounds, run.statistics.draft_s = 10, 4
    found = speed_of("mine", [run], plain=[plain])
    assert found.share_of_limit == pytest.approx(min(10 * 0.9 * slower / 20, 0.8))
    assert found.share_of_limit <= 1 - found.draft_share
    assert speed_of("off", [plain], plain=[plain]).share_of_limit == 1
