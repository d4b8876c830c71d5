"""Laws of plans for real files: what is planned fits, and what is left out first costs least."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from head_files import write_head

from edge_spec.controller.candidates import DRAFT_TABLES, STAGES, Estimators
from edge_spec.controller.options import LoadOptions
from edge_spec.controller.plan import Plan, make_plan
from edge_spec.controller.request import request_of
from edge_spec.engines.onnx.opener import OnnxOpener
from edge_spec.errors import BudgetExceeded, SettingsError
from edge_spec.loading import plan
from edge_spec.memory.budget import Budget
from edge_spec.models import inspect, resolve_family
from edge_spec.speculation.drafters.plain import NoDrafter
from edge_spec.speculation.modes import Mode

pytestmark = pytest.mark.long

MIB = 1 << 20


HELD = 60 * MIB


DEMO = resolve_family("demo")


@pytest.mark.parametrize("budget", [70, 88, 94, 98, 106, 400])
def test_what_is_planned_fits_and_more_memory_is_never_slower(budget: int) -> None:
    try:
        found = plan("demo", memory=budget * MIB, held_bytes=HELD)
    except BudgetExceeded as error:
        assert error.needed_bytes > budget * MIB
        assert re.search(r"the minimum is|it would fit$", str(error))
        return
    assert found.chosen.needed_bytes <= budget * MIB
    more = plan("demo", memory=(budget + 5) * MIB, held_bytes=HELD)
    assert _rank(more) >= _rank(found)


def _rank(found: Plan) -> tuple[int, bool, int, bool, int, int]:
    """Return how much of what was asked for a plan has, and then how fast it is."""
    chosen = found.chosen
    cache_bytes, is_mapped = chosen.parts["target"].kv_cache_bytes, chosen.choices.get("weights") == "mapped"
    speed = not is_mapped, STAGES.index(chosen.stage), chosen.settings.prefill_chunk
    return chosen.n_ctx, found.engine == "onnx", cache_bytes, *speed


@pytest.mark.parametrize("engine", ["auto", "llama", "onnx"])
@pytest.mark.parametrize("drafter", ["draft", "intermediate"])
def test_with_memory_to_spare_nothing_asked_for_is_left_out(engine: str, drafter: str) -> None:
    """Large drafters too: whether they pay, the clock tells."""
    found = plan("demo", memory="2GiB", held_bytes=HELD, engine=engine, draft=getattr(DEMO, drafter))
    assert (found.chosen.choices["speculation"], found.chosen.choices["context"]) == ("hierarchy", 1024)
    assert not found.notes


@pytest.fixture(scope="module")
def every_plan() -> Callable[[str], list[Plan]]:
    """All plans of an engine for the demo family: from all the memory there is down to the smallest budget.

    Planned one after the other, so that a library is asked once about each context.
    """

    @cache
    def of(engine: str) -> list[Plan]:
        plans: list[Plan] = []
        request = request_of(LoadOptions.of("demo", {"engine": engine}))
        budget = Budget(budget_bytes=1 << 40, held_bytes=HELD, is_limit=True)
        with suppress(BudgetExceeded), Estimators() as estimators:
            while True:
                plans.append(make_plan(request, budget, {}, estimators, advises=False))
                budget = replace(budget, budget_bytes=plans[-1].chosen.needed_bytes - 1)
        return plans

    return of


def test_drafters_go_after_longer_chunks_of_prompt_and_before_anything_rounds_differently(
    every_plan: Callable[[str], list[Plan]],
) -> None:
    chosen = [found.chosen for found in every_plan("llama")]
    same = [each for each in chosen if {**each.choices, **SPEED} == {**chosen[0].choices, **SPEED}]
    stages = [each.stage for each in same]
    assert stages == sorted(stages, key=STAGES.index, reverse=True)
    assert set(stages) >= {"hierarchy", "drafter", "tables"}
    assert [each.choices["chunk"] for each in same if each.stage == "hierarchy"] == [512, 256, 128, 64]


SPEED = {"speculation": "", "chunk": 0, "rows": 0}
"""Choices that make no difference to the text, but for how the weights lie."""


def test_drafts_of_the_length_asked_for_find_their_rows() -> None:
    for limit, rows in ((7, 8), (8, 16), (15, 16)):
        asked: dict[str, Any] = {"held_bytes": HELD, "engine": "llama", "speculation": "sequence", "n_ctx": 1024}
        least = plan("demo", memory="1GiB", draft_limit=limit, **asked)
        with pytest.raises(BudgetExceeded) as caught:
            plan("demo", memory=10 * MIB, draft_limit=limit, **asked)
        found = plan("demo", memory=caught.value.needed_bytes, draft_limit=limit, **asked)
        assert (found.chosen.choices["rows"], least.chosen.choices["rows"]) == (rows, 16)
    longest: dict[str, Any] = {"held_bytes": HELD, "engine": "onnx", "draft_limit": 15}
    fits = plan("demo", memory="1GiB", **longest).thresholds["fits"]
    assert plan("demo", memory=fits, **longest).chosen.needed_bytes == fits


@pytest.mark.parametrize(
    ("engine", "kept", "smaller"), [("llama", "q8_0/f16", "q8_0/q8_0"), ("onnx", "f16/f16", "f16/f16")]
)
def test_notes_name_types_and_only_those_that_differ(
    every_plan: Callable[[str], list[Plan]], engine: str, kept: str, smaller: str
) -> None:
    seen = set()
    for found in every_plan(engine):
        kinds = str(found.chosen.choices.get("kv", "f16/f16"))
        seen.add(kinds)
        notes = " ".join(found.notes)
        for what, old, new in zip(("keys", "values"), kept.split("/"), kinds.split("/"), strict=True):
            said = f"{what} are cached as {new} instead of {old}"
            assert (said in notes) == (old != new)
    assert {kept, smaller} <= seen


def test_a_head_that_another_engine_cannot_read_is_not_said_to_lack_memory(
    tmp_path: Path, probe_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = inspect(DEMO.target)
    write_head(head := tmp_path / "head.gguf", target, np.arange(0, 8192, 4), (1, 2, 3))
    given: dict[str, Any] = {"draft": head, "memory": "1GiB", "held_bytes": HELD, "cache_dir": probe_cache}
    assert plan(target.path, **given).chosen.mode.name == "sequence"
    monkeypatch.setattr(OnnxOpener, "prepare", lambda self, file: "its transcription does not fit the disk")
    found = plan(target.path, **given)
    assert found.chosen.engines["target"].name == "llama" and found.chosen.mode.name == "ngram"
    (note,) = [each for each in found.notes if "speculation is" in each]
    assert note.startswith("speculation is 'ngram' instead of 'sequence' because head.gguf reads hidden states")
    with pytest.raises(SettingsError, match=r"^speculation is 'sequence', and head\.gguf reads hidden states"):
        plan(target.path, speculation="sequence", **given)


def test_the_table_of_a_drafter_is_planned_as_the_drafter_says() -> None:
    plain, table = (
        plan("demo", memory="1GiB", held_bytes=HELD, engine="llama", speculation=mode).chosen
        for mode in (
            "off",
            Mode(name="mine", build=lambda models: NoDrafter(), limit=2, n_bytes=lambda n_ctx: n_ctx << 10),
        )
    )
    assert table.tables[DRAFT_TABLES] == 1 << 20
    assert table.held_bytes == plain.held_bytes + (1 << 20)


FIXED = (
    {"n_ctx": 1024},
    {"kv_k": "f16"},
    {"kv_v": "q8_0"},
    {"repack": False},
    {"prefill_chunk": 512},
    {"max_rows": 16},
)


@pytest.mark.parametrize("fixed", FIXED, ids=str)
def test_what_the_user_fixed_is_never_changed(fixed: dict[str, Any]) -> None:
    plenty = plan("demo", memory=400 * MIB, held_bytes=HELD, **fixed)
    least = plenty.thresholds["fits"]
    for found in (plenty, *(plan("demo", memory=n, held_bytes=HELD, **fixed) for n in (least, least + 4 * MIB))):
        settings = found.chosen.settings
        known = {**vars(settings), **settings.extras}
        assert {name: known[name] for name in fixed} == fixed
    with pytest.raises(BudgetExceeded, match="as asked for"):
        plan("demo", memory="120MiB", held_bytes=HELD, n_ctx=200_000)


@pytest.mark.parametrize(("engine", "kinds"), [("llama", ["q8_0/f16", "q8_0/q8_0"]), ("onnx", [None])])
def test_where_memory_is_short_caches_get_smaller_before_the_context_does(
    every_plan: Callable[[str], list[Plan]], engine: str, kinds: list[str | None]
) -> None:
    choices = [found.chosen.choices for found in every_plan(engine)]
    longest = list(takewhile(lambda each: each["context"] == 1024, choices))
    assert len(longest) < len(choices)
    assert list(dict.fromkeys(each.get("kv") for each in longest)) == kinds
    fixed = {"kv_k": "f32", "kv_v": "f32"}
    least = plan("demo", memory=1 << 40, held_bytes=HELD, engine=engine, n_ctx=1024, **fixed).thresholds["fits"]
    with pytest.raises(BudgetExceeded):
        plan("demo", memory=least - 1, held_bytes=HELD, engine=engine, n_ctx=1024, **fixed)


@pytest.mark.parametrize("engine", ["llama", "onnx"])
def test_a_drafter_takes_no_more_for_a_target_that_reads_in_larger_pieces(engine: str) -> None:
    parts = [
        plan(
            "demo", memory=1 << 40, held_bytes=HELD, engine=engine, speculation="sequence", prefill_chunk=chunk
        ).chosen.parts
        for chunk in (128, 512, 2048)
    ]
    assert len({part["draft"] for part in parts}) == 1
    assert len({part["target"] for part in parts}) == 3


def test_a_plan_opens_each_file_as_often_as_one_look_at_it_does(probe_cache: Path) -> None:
    """However many kinds of speculation it weighs up: each of them asks for the same headers."""
    code = f"""
import sys
from collections import Counter
from edge_spec.loading import plan
from edge_spec.models import inspect, resolve_family

opened = Counter()
demo = resolve_family("demo")
files = {{str(path) for path in (demo.target, demo.intermediate, demo.draft)}}
sys.addaudithook(lambda event, found: opened.update([str(found[0])] * (event == "open" and str(found[0]) in files)))
for path in sorted(files):
    inspect(path)
once = Counter(opened)
opened.clear()
plan("demo", engine="llama", cache_dir={str(probe_cache)!r})
assert opened == once and len(once) == 3, (opened, once)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
