"""Laws of tables of n-grams and of token bytes: they take what is planned and no more."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ledger_lines import lines_of

from edge_spec import TextModel
from edge_spec.controller.candidates import DRAFT_TABLES, TOKEN_BYTES
from edge_spec.loading import plan
from edge_spec.memory.pressure import PressureReading, PressureWatch
from edge_spec.sampling import Sampler, SamplerSettings
from edge_spec.speculation.drafters.ngram import NgramDrafter, table_bytes
from edge_spec.speculation.text import Text
from edge_spec.tokens.tokenizer import TOKEN_BYTES_LIMIT, TokenBytes

MIB = 1 << 20


def begun(drafter: NgramDrafter) -> NgramDrafter:
    drafter.begin(Text(), Sampler(SamplerSettings(), ()))
    return drafter


@pytest.mark.parametrize("n_tokens", [0, 1, 100, 127, 128, 129, 1000, 4096, 5000])
@pytest.mark.parametrize("n_kinds", [2, 30_000])
def test_a_table_takes_what_was_said_and_no_more(n_tokens: int, n_kinds: int) -> None:
    drafter, rng = begun(NgramDrafter()), random.Random(n_tokens)
    for _ in range(n_tokens):
        drafter.text.tokens.extend([rng.randrange(n_kinds)])
        drafter.draft(1)
        assert drafter.held_bytes <= table_bytes(n_tokens)
    drafter.text.shorten(n_tokens // 2)
    assert drafter.held_bytes <= table_bytes(n_tokens)


@pytest.mark.parametrize("n_tokens", [256, 1000, 4096, 8192, 131_072])
def test_a_table_remembers_all_of_a_context(n_tokens: int) -> None:
    phrase = [7, 8, 9, 10, 11]
    drafter = begun(NgramDrafter())
    drafter.text.tokens.extend([*phrase, *range(100, 100 + n_tokens - 9), *phrase[:4]])
    assert drafter.draft(1).tokens == (11,)
    assert drafter.held_bytes <= table_bytes(n_tokens)


@given(st.lists(st.integers(0, 400), min_size=1, max_size=300), st.integers(3000, 40_000))
def test_bytes_of_tokens_are_right_and_within_their_limit(tokens: list[int], max_bytes: int) -> None:
    asked: list[int] = []

    def read(token: int) -> bytes:
        asked.append(token)
        return b"x" * (token % 9)

    known = TokenBytes(max_bytes=max_bytes)
    for token in tokens:
        assert known.of(token, read) == b"x" * (token % 9)
        assert known.held_bytes <= max_bytes
    n_asked = len(asked)
    known.of(tokens[-1], read)
    assert len(asked) == n_asked


@pytest.mark.long
def test_tables_and_bytes_of_tokens_are_planned_and_measured(load_demo: Callable[..., TextModel]) -> None:
    planned = plan("demo", memory="1GiB", speculation="ngram", n_ctx=512, n_threads=1).chosen
    with load_demo(speculation="ngram") as model:
        before = lines_of(model)[DRAFT_TABLES].measured_bytes
        model.generate("Tell me a story.", seed=1, max_tokens=60, ignore_eos=True).read()
        lines = lines_of(model)
        for name, n_bytes in ((DRAFT_TABLES, table_bytes(512)), (TOKEN_BYTES, TOKEN_BYTES_LIMIT)):
            assert planned.tables[name] == lines[name].predicted_bytes == n_bytes
            assert 0 < lines[name].measured_bytes <= n_bytes
        assert lines[DRAFT_TABLES].measured_bytes > before
        report = {line["name"]: line for line in json.loads(json.dumps(model.ledger.report()))["lines"]}
        assert report[DRAFT_TABLES]["measured_bytes"] == lines[DRAFT_TABLES].measured_bytes
        assert TOKEN_BYTES in model.ledger.table()
        model.ledger.check_integrity()
    with load_demo(speculation="sequence") as model:
        assert DRAFT_TABLES not in lines_of(model)


@pytest.mark.parametrize("room", [True, False])
def test_a_table_comes_with_the_drafter_that_needs_it_and_goes_with_it(
    load_demo: Callable[..., TextModel], room: bool
) -> None:
    now, available = [0.0], 150

    def clock() -> float:
        now[0] += 100.0
        return now[0]

    watch = PressureWatch(
        lambda: PressureReading(available_bytes=available), low_bytes=100, interval_s=0.0, clock=clock
    )
    with load_demo(speculation="sequence", watch=watch) as model:
        text = model.generate("Hello", seed=1, max_tokens=20).read()
        held, ledger = model.ledger.held_bytes, model.ledger
        drafter = sum(line.predicted_bytes for line in ledger if line.owner == "draft")
        if not room:
            # Without room for a table nothing drafts, and the text is the same.
            ledger.budget_bytes = held + ledger.reserve_bytes - drafter
        available = 0
        model.check_memory()
        available = 150
        assert "draft" not in {line.owner for line in ledger}
        lines = lines_of(model)
        assert [lines[name].predicted_bytes for name in lines if name == DRAFT_TABLES] == [table_bytes(512)] * room
        assert model.drafter_name == ("auto" if room else "off")
        assert model.generate("Hello", seed=1, max_tokens=20).read() == text
        ledger.budget_bytes = None
        available = 1 << 40
        for _ in range(4):
            model.check_memory()
        assert DRAFT_TABLES not in lines_of(model)
        assert ledger.held_bytes == held
        ledger.check_integrity()
