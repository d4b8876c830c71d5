"""Laws of the memory budget: it is planned before anything is loaded, kept in books, and never overdrawn."""

from __future__ import annotations

import itertools
import json
import re
from ast import literal_eval
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gguf_files import write_gguf
from hypothesis import given
from hypothesis import strategies as st

from edge_spec.controller.candidates import DRAFT_TABLES, STAGES, Candidate
from edge_spec.controller.plan import choose
from edge_spec.engines.llama.footprint import DryModel, llama_footprint
from edge_spec.engines.llama.settings import LlamaSettings
from edge_spec.engines.registry import engine as registry_engine
from edge_spec.engines.registry import settings_of
from edge_spec.errors import BudgetExceeded, OutOfMemory, SettingsError
from edge_spec.loading import load, plan
from edge_spec.memory import (
    Device,
    Footprint,
    Ledger,
    Usage,
    format_size,
    parse_size,
    reserve_bytes,
    usage,
)
from edge_spec.memory.budget import Budget, budget_of
from edge_spec.memory.pressure import system_watch
from edge_spec.models import inspect, resolve_family
from edge_spec.models.model_file import kv_cache_bytes
from edge_spec.speculation.drafters.plain import NoDrafter
from edge_spec.speculation.modes import MODES, Mode

MIB = 1 << 20
HELD = 60 * MIB
DEMO = resolve_family("demo")


# --- sizes


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("2GiB", 2 << 30),
        ("2GB", 2 * 10**9),
        ("512MiB", 512 << 20),
        ("1.5g", 3 << 29),
        ("4096", 4096),
        (4096, 4096),
        ("7 k", 7 << 10),
        (" 1tb ", 10**12),
        ("0.5MiB", 1 << 19),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str | int, n_bytes: int) -> None:
    assert parse_size(text) == n_bytes


@pytest.mark.parametrize(
    "text",
    ["0", "0GiB", "-1", "banana", "", "1e9", "GiB", "2 GiB 3", "1.2.3", "²", 0, -5, True, "9" * 30, "9999999tib"],
)
def test_what_is_no_size_is_refused(text: Any) -> None:
    with pytest.raises(SettingsError, match=r"^memory is"):
        parse_size(text)


@given(st.integers(1, 1 << 50))
def test_printed_sizes_are_never_too_small(n_bytes: int) -> None:
    assert parse_size(format_size(n_bytes).replace(",", "")) >= n_bytes - (n_bytes >> 5)
    assert parse_size(f"{n_bytes}") == n_bytes


# --- the ledger

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


# --- what the operating system says


def test_usage_is_read_from_what_linux_writes() -> None:
    text = (
        "5500-7fff ---p 0 00:00 0 [rollup]\nRss: 40 kB\nPrivate_Clean: 3 kB\nPrivate_Dirty: 20 kB\nAnonymous: 18 kB\n"
    )
    assert usage(lambda path: text) == Usage(resident_bytes=40 << 10, unique_bytes=23 << 10, anonymous_bytes=18 << 10)
    for damaged in ("", "Rss: many kB\n", "Rss: 4 kB\n"):
        found = usage(lambda path, damaged=damaged: damaged)
        assert found.resident_bytes >= found.unique_bytes > 0


def test_memory_that_is_touched_is_counted() -> None:
    before = usage()
    # What other tests left behind may go meanwhile.
    touched = bytearray(b"\1") * (256 * MIB)
    after = usage()
    assert after.anonymous_bytes - before.anonymous_bytes >= len(touched) * 9 // 10
    assert after.resident_bytes >= after.unique_bytes


# --- budgets


def device(total: int, available: int) -> Callable[[], Device]:
    return lambda: Device(total_bytes=total, available_bytes=available, n_physical_cores=2, n_logical_cores=2)


def reading(resident: int = HELD) -> Callable[[], Usage]:
    return lambda: Usage(resident_bytes=resident, unique_bytes=resident, anonymous_bytes=resident)


def test_the_default_budget_is_a_share_of_what_is_available() -> None:
    found = budget_of(None, device=device(1000 * MIB, 500 * MIB), reading=reading())
    assert (found.budget_bytes, found.held_bytes, found.notes) == (HELD + 400 * MIB, HELD, ())


def test_a_budget_is_never_more_than_is_free() -> None:
    small = device(1000 * MIB, 200 * MIB)
    assert budget_of("150MiB", device=small, reading=reading()).budget_bytes == 150 * MIB
    found = budget_of("600MiB", device=small, reading=reading())
    assert found.budget_bytes == HELD + 200 * MIB
    assert "260 MiB" in found.notes[0]
    with pytest.raises(OutOfMemory, match="2,000 MiB") as caught:
        budget_of("2000MiB", device=small, reading=reading())
    assert caught.value.needed_bytes == 2000 * MIB


# --- choosing

FOOTPRINTS = st.builds(
    Footprint,
    mapped_bytes=st.integers(0, 50 * MIB),
    repacked_bytes=st.integers(0, 50 * MIB),
    kv_cache_bytes=st.integers(0, 50 * MIB),
    compute_bytes=st.integers(0, 9 * MIB),
    reading_bytes=st.integers(0, 30 * MIB),
    loading_bytes=st.integers(0, 60 * MIB),
)
CANDIDATES = st.builds(
    Candidate,
    mode=st.sampled_from(tuple(MODES.values())),
    settings=st.just(settings_of(512, {})),
    engines=st.just({"target": registry_engine("llama")}),
    models=st.just({"target": LlamaSettings(n_ctx=512, kv_k="f16")}),
    base_bytes=st.integers(0, 60 * MIB),
    parts=st.builds(
        lambda target, others: {"target": target, **others},
        FOOTPRINTS,
        st.dictionaries(st.sampled_from(["draft", "intermediate"]), FOOTPRINTS),
    ),
    tables=st.dictionaries(st.sampled_from(["table", "tokens"]), st.integers(0, 9 * MIB)),
    speed=st.floats(0.1, 10),
)


@given(st.lists(st.lists(CANDIDATES, min_size=1, max_size=6), min_size=1, max_size=4), st.integers(1, 400 * MIB))
def test_a_plan_never_exceeds_the_budget(levels: list[list[Candidate]], budget: int) -> None:
    try:
        found = choose(levels, budget, what="model.gguf")
    except BudgetExceeded as error:
        assert all(candidate.needed_bytes > budget for level in levels for candidate in level)
        assert error.needed_bytes == min(candidate.needed_bytes for level in levels for candidate in level)
        return
    chosen = found.chosen
    assert chosen.needed_bytes == chosen.peak_bytes + reserve_bytes(chosen.peak_bytes) <= budget
    level = next(level for level in levels if any(candidate.needed_bytes <= budget for candidate in level))
    fitting = [candidate for candidate in level if candidate.needed_bytes <= budget]
    assert chosen in fitting
    assert all((other.speed, -other.needed_bytes) <= (chosen.speed, -chosen.needed_bytes) for other in fitting)
    for other in found.runners_up:
        assert other.needed_bytes <= budget


@given(CANDIDATES)
def test_the_peak_is_the_most_of_every_moment(candidate: Candidate) -> None:
    held = candidate.base_bytes + sum(candidate.tables.values())
    moments = [held]
    for part in candidate.parts.values():
        moments.append(held + part.weight_bytes + part.vocabulary_bytes + part.loading_bytes)
        held += sum(part.lines().values())
        moments.append(held)
    moments.append(held + max(part.reading_bytes for part in candidate.parts.values()))
    assert candidate.peak_bytes == max(moments)
    assert candidate.held_bytes == held


# --- planning for real files


@pytest.mark.parametrize("budget", [70, 88, 94, 98, 106, 400])
def test_what_is_planned_fits_and_more_memory_is_never_slower(budget: int) -> None:
    try:
        found = plan("demo", memory=budget * MIB, held_bytes=HELD)
    except BudgetExceeded as error:
        assert error.needed_bytes > budget * MIB
        assert "minimum" in str(error)
        return
    assert found.chosen.needed_bytes <= budget * MIB
    more = plan("demo", memory=(budget + 5) * MIB, held_bytes=HELD)
    assert (more.chosen.choices["context"], more.chosen.speed) >= (found.chosen.choices["context"], found.chosen.speed)


def test_thresholds_are_where_things_become_possible() -> None:
    thresholds = plan("demo", memory="1GiB", held_bytes=HELD, engine="llama").thresholds
    assert list(thresholds) == ["fits", "tables", "drafter", "hierarchy"]
    assert thresholds["fits"] <= thresholds["tables"] <= thresholds["drafter"] < thresholds["hierarchy"]
    for mode in MODES:
        # Whatever is asked for, all that the files allow is told.
        assert plan("demo", memory="1GiB", held_bytes=HELD, engine="llama", speculation=mode).thresholds == thresholds
    assert (
        plan("demo", memory=thresholds["fits"], held_bytes=HELD, engine="llama").chosen.needed_bytes
        == thresholds["fits"]
    )
    with pytest.raises(BudgetExceeded) as caught:
        plan("demo", memory=thresholds["fits"] - 1, held_bytes=HELD, engine="llama")
    assert caught.value.needed_bytes == thresholds["fits"]
    least = plan("demo", memory="1GiB", held_bytes=HELD, engine="llama", speculation="hierarchy").thresholds[
        "hierarchy"
    ]
    assert (
        plan("demo", memory=least, held_bytes=HELD, engine="llama", speculation="hierarchy").chosen.stage == "hierarchy"
    )
    assert least == thresholds["hierarchy"]


@pytest.mark.parametrize("engine", ["auto", "llama", "onnx"])
@pytest.mark.parametrize("drafter", ["draft", "intermediate"])
def test_with_memory_to_spare_nothing_wished_for_is_left_out(engine: str, drafter: str) -> None:
    """Large drafters too: whether they pay, the clock tells."""
    found = plan("demo", memory="2GiB", held_bytes=HELD, engine=engine, draft=getattr(DEMO, drafter))
    assert (found.chosen.choices["speculation"], found.chosen.choices["context"]) == ("hierarchy", 1024)
    assert not found.notes


def test_drafters_go_after_longer_chunks_of_prompt_and_before_anything_rounds_differently() -> None:
    chosen: list[Candidate] = []
    budget = 2 << 30
    with suppress(BudgetExceeded):
        while True:
            chosen.append(plan("demo", memory=budget, held_bytes=HELD, engine="llama").chosen)
            budget = chosen[-1].needed_bytes - 1
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


def test_notes_name_types_and_only_those_that_differ() -> None:
    for engine, kept, smaller in (("llama", "q8_0/f16", "q8_0/q8_0"), ("onnx", "f32/f32", "f16/f16")):
        seen = set()
        for budget in range(70, 120):
            try:
                found = plan("demo", memory=budget * MIB, held_bytes=HELD, engine=engine)
            except BudgetExceeded:
                continue
            kinds = str(found.chosen.choices.get("kv", "f32/f32"))
            seen.add(kinds)
            notes = " ".join(found.notes)
            for what, old, new in zip(("keys", "values"), kept.split("/"), kinds.split("/"), strict=True):
                said = f"{what} are cached as {new} instead of {old}"
                assert (said in notes) == (old != new)
        assert {kept, smaller} <= seen


def test_thresholds_say_for_which_context_and_cache() -> None:
    for engine, kinds in (("llama", ("q8_0", "q8_0")), ("onnx", ("f16", "f16"))):
        found = plan("demo", memory="1GiB", held_bytes=HELD, engine=engine)
        for name, candidate in found.least.items():
            assert found.thresholds[name] == candidate.needed_bytes
            assert (candidate.n_ctx, candidate.kv) == (256, kinds)
        with pytest.raises(BudgetExceeded) as caught:
            plan("demo", memory=10 * MIB, held_bytes=HELD, engine=engine)
        assert f"(context 256, cache {'/'.join(kinds)})" in caught.value.hint
    fixed = plan("demo", memory="1GiB", held_bytes=HELD, engine="llama", n_ctx=700, kv_k="f16", kv_v="f16").least[
        "fits"
    ]
    assert (fixed.n_ctx, fixed.kv) == (700, ("f16", "f16"))


def test_a_context_beyond_reason_is_advised_against_with_the_trained_size() -> None:
    with pytest.raises(BudgetExceeded) as caught:
        plan("demo", memory="1GiB", held_bytes=HELD, n_ctx=99_999_999)
    assert "with `n_ctx=1024` it would fit" in caught.value.hint


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


@pytest.mark.parametrize("memory", ["banana", "0", 1 << 59])
def test_a_budget_that_is_not_valid_is_answered_with_those_that_are(memory: Any) -> None:
    for ask in (load, *([plan] if memory != 1 << 59 else [])):
        with pytest.raises((SettingsError, OutOfMemory), match=r"minimum .* MiB \(context 256"):
            ask(memory=memory)


def test_a_refusal_names_the_engine_that_takes_less() -> None:
    with pytest.raises(BudgetExceeded) as caught:
        plan("demo", memory=10 * MIB, held_bytes=HELD)
    assert "`engine='llama'`" in caught.value.hint
    with pytest.raises(BudgetExceeded) as caught:
        plan("demo", memory=10 * MIB, held_bytes=HELD, engine="llama")
    assert "`engine='llama'`" not in caught.value.hint


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
    for budget in (92, 100):
        try:
            found = plan("demo", memory=budget * MIB, held_bytes=HELD, **fixed)
        except BudgetExceeded:
            continue
        settings = found.chosen.settings
        known = {**vars(settings), **settings.extras}
        assert {name: known[name] for name in fixed} == fixed
    with pytest.raises(BudgetExceeded, match="as asked for"):
        plan("demo", memory="120MiB", held_bytes=HELD, n_ctx=200_000)


@pytest.mark.parametrize(("engine", "kinds"), [("llama", ["q8_0/f16", "q8_0/q8_0"]), ("onnx", [None, "f16/f16"])])
def test_where_memory_is_short_caches_get_smaller_before_the_context_does(engine: str, kinds: list[str | None]) -> None:
    found: list[tuple[Any, Any]] = []
    budget = 1 << 40
    while not found or found[-1][0] == 1024:
        chosen = plan("demo", memory=budget, held_bytes=HELD, engine=engine).chosen
        found.append((chosen.choices["context"], chosen.choices.get("kv")))
        budget = chosen.needed_bytes - 1
    assert list(dict.fromkeys(found[:-1])) == [(1024, kind) for kind in kinds]
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


def test_a_named_way_to_speculate_is_kept_or_refused() -> None:
    with pytest.raises(BudgetExceeded, match=r"would fit; minimum .* the hierarchy from") as caught:
        plan("demo", memory="96MiB", held_bytes=HELD, speculation="hierarchy")
    assert "`speculation=" in caught.value.hint


@pytest.mark.parametrize(
    "asked",
    [
        {"min_n_ctx": 100_000},
        {"n_ctx": 100_000, "speculation": "off"},
        {"speculation": "hierarchy", "n_ctx": 512},
        {"n_ctx": 20_000, "kv_k": "f32", "kv_v": "f32", "engine": "llama"},
    ],
    ids=str,
)
def test_what_is_refused_is_told_what_to_change(asked: dict[str, Any]) -> None:
    budget = MIB + plan("demo", memory=1 << 40, held_bytes=HELD, speculation="off", n_ctx=512).thresholds["fits"]
    with pytest.raises(BudgetExceeded, match="it would fit") as caught:
        plan("demo", memory=budget, held_bytes=HELD, **asked)
    said = re.search(r"with `([^`]+)` it would fit", caught.value.hint)
    assert said is not None
    changes = {name: literal_eval(value) for name, value in re.findall(r"(\w+)=([^,]+)", said[1])}
    asked = {name: value for name, value in asked.items() if name != "min_n_ctx" or "n_ctx" not in changes}
    asked |= changes
    assert plan("demo", memory=budget, held_bytes=HELD, **asked).chosen.needed_bytes <= budget


# --- estimates


@pytest.mark.parametrize("kinds", [{}, {"attn_v": "Q6_K", "token_embd": "Q6_K"}, {"token_embd": "F16"}], ids=str)
@pytest.mark.parametrize(("tied", "repack"), [(False, True), (True, True), (True, False)])
def test_weights_and_caches_are_what_llama_cpp_allocates(
    tmp_path: Path, kinds: dict[str, str], tied: bool, repack: bool
) -> None:
    path = write_gguf(tmp_path / "model.gguf", kinds=kinds, tied=tied)
    with load(path, speculation="off", repack=repack, n_ctx=300, n_threads=1, cache_dir=None) as model:
        measured = {line.name: line for line in model.ledger if line.owner == "target"}
    for name in ("weights, mapped", "weights, repacked", "weights, copied", "KV cache"):
        if name in measured:
            line = measured[name]
            assert line.measured_bytes == pytest.approx(line.predicted_bytes, abs=20 << 10), name
    assert "KV cache" in measured


@pytest.mark.parametrize("engine", ["llama", "onnx"])
@pytest.mark.parametrize("head_dim", [48, 64])
def test_every_type_of_cache_is_planned_as_it_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, head_dim: int
) -> None:
    monkeypatch.setattr("gguf_files.HEAD_DIM", head_dim)
    file, on = inspect(write_gguf(tmp_path / "model.gguf")), registry_engine(engine)
    asked = settings_of(4096, {"n_threads": 1})
    requested = (asked, replace(asked, kv_k="f16", kv_v="f16"), replace(asked, kv_k="f32", kv_v="f32"))
    alone: list[Footprint] = []
    for settings in requested:
        with on.estimator() as estimates:
            alone.append(estimates.footprint(file, settings, tokenizer=True))
    for order in itertools.permutations(range(len(requested))):
        with on.estimator() as estimates:
            assert all(estimates.footprint(file, requested[n], tokenizer=True) == alone[n] for n in order)
    for settings in requested:
        kinds = {"kv_k": settings.kv_k, "kv_v": settings.kv_v} if settings is not asked else {}
        chosen = plan(
            file.path,
            memory=1 << 40,
            held_bytes=HELD,
            engine=engine,
            n_ctx=4096,
            n_threads=1,
            speculation="off",
            **kinds,
        ).chosen
        footprint = chosen.parts["target"]
        shown = str(chosen.choices.get("kv", "f32/f32")).split("/")
        cells = kv_cache_bytes(file, 4096, *shown)
        # The angles of positions come on top.
        assert cells <= footprint.kv_cache_bytes <= 1.3 * cells


def test_compute_buffers_are_what_llama_cpp_allocates() -> None:
    for trees, chunk in itertools.product((False, True), (64, 512)):
        settings = LlamaSettings(n_ctx=512, trees=trees, prefill_chunk=chunk, kv_k="q8_0", kv_v="f16")
        file = inspect(DEMO.target)
        with DryModel(file) as dry:
            said = dry.compute_bytes(settings)
            assert said is not None
            footprint = llama_footprint(file, settings, dry=dry)
        assert said < footprint.compute_bytes < said + 4 * MIB
        rough = llama_footprint(file, settings)
        assert rough.compute_bytes > 0
        assert replace(rough, compute_bytes=0) == replace(footprint, compute_bytes=0)


def test_a_model_in_several_files_is_planned_like_one(tmp_path: Path) -> None:
    import gguf

    whole = inspect(DEMO.target)
    reader = gguf.GGUFReader(DEMO.target)
    names = [tmp_path / f"demo-{number:05}-of-00002.gguf" for number in (1, 2)]
    for number, path in enumerate(names):
        writer = gguf.GGUFWriter(path, "llama")
        for key, field in reader.fields.items():
            if number == 0 and not key.startswith("GGUF.") and key != "general.architecture":
                kind = field.types[0]
                sub = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
                writer.add_key_value(key, field.contents(), kind, sub_type=sub)
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", 2)
        writer.add_int32("split.tensors.count", len(reader.tensors))
        for tensor in reader.tensors[number::2]:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    split = inspect(names[0])
    assert split.parts == tuple(names)
    assert (split.weight_bytes, split.n_params, split.n_vocab) == (whole.weight_bytes, whole.n_params, whole.n_vocab)
    settings = LlamaSettings(n_ctx=512)
    assert llama_footprint(split, settings) == llama_footprint(whole, settings)
    prompt, seed = "Tell me a story.", 3
    texts = []
    for path in (names[0], DEMO.target):
        with load(path, speculation="off", n_threads=1, cache_dir=None) as model:
            texts.append(model.generate(prompt, seed=seed, max_tokens=12).read())
    assert texts[0] == texts[1]


# --- enforcement


@pytest.fixture
def loaded() -> Iterator[Callable[..., Any]]:
    models: list[Any] = []

    def open_it(**asked: Any) -> Any:
        models.append(load("demo", n_threads=1, cache_dir=None, **asked))
        return models[-1]

    yield open_it
    for model in models:
        model.close()


def test_a_loaded_model_holds_what_was_planned_and_no_more(loaded: Callable[..., Any]) -> None:
    room = usage().resident_bytes + 400 * MIB
    model = loaded(memory=room, speculation="hierarchy")
    model.generate("Tell me a story.", seed=1, max_tokens=12).read()
    ledger = model.ledger
    ledger.check_integrity()
    assert ledger.budget_bytes == room
    assert {line.owner for line in ledger} == {"process", "target", "draft", "intermediate"}
    with pytest.raises(BudgetExceeded) as caught:
        ledger.claim("chat", "session saves", room)
    assert caught.value.allowed_bytes == ledger.left_bytes < room
    ledger.claim("chat", "session saves", MIB)
    assert ledger.release("chat") == MIB


def test_a_tight_budget_drops_the_drafter_and_says_so(
    loaded: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    thresholds = plan("demo", memory="1GiB", held_bytes=HELD, engine="llama").thresholds
    tight = Budget(budget_bytes=thresholds["drafter"] - 1, held_bytes=HELD)
    # What this process holds changes from test to test.
    monkeypatch.setattr("edge_spec.loading.budget_of", lambda memory: tight)
    model = loaded(memory="unused", n_ctx=256, engine="llama", watch=system_watch())
    assert model.mode == "ngram"
    assert any("instead of 'hierarchy'" in note for note in model.notes)
    assert {line.owner for line in model.ledger} == {"process", "target"}


def test_nothing_is_loaded_that_does_not_fit(loaded: Callable[..., Any]) -> None:
    with pytest.raises(BudgetExceeded, match=r"minimum .* MiB"):
        loaded(memory="10MiB")
    with pytest.raises(BudgetExceeded):
        loaded(memory=usage().resident_bytes + 12 * MIB, speculation="hierarchy", n_ctx=4096)
    with pytest.raises(SettingsError):
        loaded(memory="banana")


def test_books_of_a_plan_leave_the_reserve_alone() -> None:
    found = plan("demo", memory="200MiB", held_bytes=HELD, speculation="sequence")
    ledger = found.ledger()
    for role, part in found.chosen.parts.items():
        ledger.claim_all(role, part.lines())
    ledger.check_integrity()
    held = found.chosen.held_bytes + found.chosen.reading_bytes
    assert ledger.held_bytes == held
    assert ledger.left_bytes == 200 * MIB - held - reserve_bytes(found.chosen.peak_bytes)
