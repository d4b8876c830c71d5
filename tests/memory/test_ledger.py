"""Laws of the ledger: every byte has a line, all lines together never exceed the budget."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_spec.errors import BudgetExceeded
from edge_spec.loading import plan
from edge_spec.memory import (
    Ledger,
    Usage,
    reserve_bytes,
)

MIB = 1 << 20


HELD = 60 * MIB


ENTRIES = st.lists(
    st.tuples(
        st.sampled_from(["target", "draft", "chat"]), st.sampled_from(["weights", "KV cache"]), st.integers(0, 60)
    ),
    max_size=20,
)


@given(ENTRIES, st.integers(20, 120), st.integers(0, 20))
def test_the_books_never_exceed_the_budget(entries: list[tuple[str, str, int]], budget: int, reserve: int) -> None:
    ledger = Ledger(budget, reserve=reserve)
    for owner, name, n_bytes in entries:
        held, left = ledger.held_bytes, ledger.left_bytes
        assert left == budget - reserve - held
        try:
            ledger.claim(owner, name, n_bytes)
        except BudgetExceeded as error:
            assert n_bytes > left
            assert (error.needed_bytes, error.allowed_bytes, ledger.held_bytes) == (n_bytes, left, held)
        else:
            assert ledger.held_bytes == held + n_bytes
        ledger.check_integrity()
    assert ledger.held_bytes == sum(line.predicted_bytes for line in ledger)
    released = ledger.release("target") + ledger.release("draft") + ledger.release("chat", "weights")
    assert released + ledger.held_bytes + ledger.release("chat") >= released
    assert (ledger.held_bytes, tuple(ledger)) == (0, ())


@given(
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["weights", "KV cache"]), st.integers(0, 60)), max_size=20),
    st.integers(60, 160),
    st.integers(0, 40),
)
def test_those_that_share_a_budget_never_exceed_it_together(
    entries: list[tuple[int, str, int]], budget: int, kept: int
) -> None:
    whole = Ledger(budget)
    whole.claim("process", "interpreter", 10)
    shares = [Ledger(reserve=3, within=whole, kept_bytes=kept if n == 0 else 0) for n in range(3)]
    for number, name, n_bytes in entries:
        share = shares[number]
        left = share.left_bytes
        assert left is not None
        try:
            share.claim("target", name, n_bytes)
        except BudgetExceeded:
            assert n_bytes > left
        else:
            assert n_bytes <= left
        assert whole.held_bytes == 10 + sum(each.share_bytes for each in shares) <= budget
        # What is kept for one can be claimed by it whatever the others hold.
        assert shares[0].left_bytes is not None and shares[0].left_bytes + shares[0].held_bytes + 3 >= kept
    for share in shares:
        share.retire()
    assert whole.held_bytes == 10


def test_who_finds_less_in_a_shared_budget_than_is_kept_for_it_takes_nothing() -> None:
    whole = Ledger(100)
    Ledger(within=whole, kept_bytes=70)
    with pytest.raises(BudgetExceeded) as refused:
        Ledger(within=whole, kept_bytes=40)
    assert (refused.value.needed_bytes, refused.value.allowed_bytes, whole.left_bytes) == (40, 30, 30)


def test_several_lines_are_entered_all_or_none() -> None:
    ledger = Ledger(100)
    with pytest.raises(BudgetExceeded):
        ledger.claim_all("target", {"weights": 60, "KV cache": 60})
    assert tuple(ledger) == ()
    ledger.claim_all("target", {"weights": 60, "KV cache": 40})
    assert ledger.left_bytes == 0


def test_a_ledger_without_a_budget_only_counts() -> None:
    ledger = Ledger()
    ledger.claim("target", "weights", 1 << 60)
    assert (ledger.left_bytes, ledger.held_bytes) == (None, 1 << 60)
    ledger.check_integrity()


def test_a_ledger_tells_what_was_planned_and_what_was_measured() -> None:
    ledger = Ledger(100 * MIB, reserve=8 * MIB)
    ledger.claim("target", "weights", 9 * MIB)
    ledger.claim("target", "KV cache", 5 * MIB)
    ledger.measure("target", "weights", 10 * MIB)
    ledger.measure("nobody", "weights", 10 * MIB)
    now = Usage(resident_bytes=77 * MIB, unique_bytes=70 * MIB, anonymous_bytes=60 * MIB)
    report = json.loads(json.dumps(ledger.report(now)))
    assert [(line["name"], line["predicted_bytes"], line["measured_bytes"]) for line in report["lines"]] == [
        ("weights", 9 * MIB, 10 * MIB),
        ("KV cache", 5 * MIB, None),
    ]
    assert (report["held_bytes"], report["budget_bytes"]) == (14 * MIB, 100 * MIB)
    table = ledger.table(now)
    for part in ("target", "weights", "9 MiB", "10 MiB", "reserve", "22 MiB", "77 MiB", "100 MiB"):
        assert part in table


def test_books_of_a_plan_leave_the_reserve_alone() -> None:
    found = plan("demo", memory="200MiB", held_bytes=HELD, speculation="sequence")
    ledger = found.ledger()
    for role, part in found.chosen.parts.items():
        ledger.claim_all(role, part.lines())
    ledger.check_integrity()
    held = found.chosen.held_bytes + found.chosen.reading_bytes
    assert ledger.held_bytes == held
    assert ledger.left_bytes == 200 * MIB - held - reserve_bytes(found.chosen.peak_bytes)
