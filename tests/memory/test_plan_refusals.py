"""Laws of plans that do not fit: thresholds are exact, and a refusal names what would fit."""

from __future__ import annotations

import re
from ast import literal_eval
from pathlib import Path
from typing import Any

import pytest
from gguf_files import write_gguf

from edge_spec.errors import BudgetExceeded, OutOfMemory, SettingsError
from edge_spec.loading import load, plan
from edge_spec.models import resolve_family
from edge_spec.speculation.modes import MODES

pytestmark = pytest.mark.long

MIB = 1 << 20


HELD = 60 * MIB


def test_thresholds_are_where_things_become_possible() -> None:
    thresholds = plan("demo", memory="1GiB", held_bytes=HELD, engine="llama").thresholds
    assert list(thresholds) == ["fits", "tables", "drafter", "hierarchy"]
    assert thresholds["fits"] <= thresholds["tables"] <= thresholds["drafter"] < thresholds["hierarchy"]
    for mode in MODES:
        # Whatever is asked for, all that the files allow is told.
        memory = thresholds["hierarchy"] if mode == "hierarchy" else "1GiB"
        found = plan("demo", memory=memory, held_bytes=HELD, engine="llama", speculation=mode)
        assert found.thresholds == thresholds
        assert found.chosen.mode.name == mode
    assert (
        plan("demo", memory=thresholds["fits"], held_bytes=HELD, engine="llama").chosen.needed_bytes
        == thresholds["fits"]
    )
    with pytest.raises(BudgetExceeded) as caught:
        plan("demo", memory=thresholds["fits"] - 1, held_bytes=HELD, engine="llama")
    assert caught.value.needed_bytes == thresholds["fits"]


def test_thresholds_say_for_which_context_and_cache() -> None:
    for engine, kinds in (("llama", ("q8_0", "q8_0")), ("onnx", ("f16", "f16"))):
        found = plan("demo", memory="1GiB", held_bytes=HELD, engine=engine)
        for name, candidate in found.least.items():
            assert found.thresholds[name] == candidate.needed_bytes
            assert (candidate.n_ctx, candidate.kv) == (256, kinds)
        with pytest.raises(BudgetExceeded) as caught:
            plan("demo", memory=10 * MIB, held_bytes=HELD, engine=engine)
        assert f"(context 256, cache {'/'.join(kinds)}; " in caught.value.hint
    fixed = plan("demo", memory="1GiB", held_bytes=HELD, engine="llama", n_ctx=700, kv_k="f16", kv_v="f16").least[
        "fits"
    ]
    assert (fixed.n_ctx, fixed.kv) == (700, ("f16", "f16"))


@pytest.mark.parametrize(("trained", "advised"), [(1024, 1024), (8192, 8192), (40960, 40960), (1 << 22, 1 << 20)])
def test_a_context_beyond_reason_is_advised_against_with_the_trained_size(
    trained: int, advised: int, tmp_path: Path
) -> None:
    """Or with the next half of it that fits."""
    model = write_gguf(tmp_path / "model.gguf", extra={"context_length": trained})
    with pytest.raises(BudgetExceeded) as caught:
        plan(model, memory="1GiB", held_bytes=HELD, n_ctx=99_999_999)
    assert f"with `n_ctx={advised}` it would fit" in caught.value.hint


@pytest.mark.parametrize(("memory", "hint"), [("banana", "2GiB"), ("0", "2GiB"), (1 << 59, "choose a smaller")])
def test_a_budget_that_is_not_valid_is_answered_with_what_is(memory: Any, hint: str) -> None:
    for ask in (load, *([plan] if memory != 1 << 59 else [])):
        with pytest.raises((SettingsError, OutOfMemory), match=hint):
            ask(memory=memory)


def test_an_engine_that_is_not_used_takes_nothing() -> None:
    """So that the smallest budget is the same, whether or not the engine that it has is named."""
    said = []
    for engine in ("auto", "llama"):
        with pytest.raises(BudgetExceeded) as caught:
            plan("demo", memory=10 * MIB, held_bytes=HELD, engine=engine)
        said.append((caught.value.needed_bytes, caught.value.hint))
    assert said[0] == said[1]
    least = said[0][0]
    assert plan("demo", memory=least, held_bytes=HELD).chosen.needed_bytes == least


def test_what_a_program_holds_is_told_apart() -> None:
    """A refusal must not put down to a model what another one holds."""
    for held in (HELD, 431 * MIB):
        with pytest.raises(BudgetExceeded) as caught:
            plan("demo", memory=10 * MIB, held_bytes=held, engine="llama")
        assert f"; {(held >> 20) + 12} MiB without the model)" in caught.value.hint


def test_a_named_way_to_speculate_is_kept_or_refused() -> None:
    with pytest.raises(BudgetExceeded, match=r"it would fit$") as caught:
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


def test_a_refusal_names_every_model_that_is_loaded_already() -> None:
    """Not its own: what a model needs is stated without what others hold."""

    def refused() -> str:
        with pytest.raises(BudgetExceeded) as caught:
            load("demo", memory=20 * MIB)
        return str(caught.value)

    small = resolve_family("demo").draft
    assert "already" not in refused()
    with load("demo", n_ctx=1024) as first:
        assert re.search(r"this process holds [\d,]+ MiB already, up to \d+ MiB for demo: `close\(\)` what", refused())
        with load(small, n_ctx=256) as second:
            sizes = re.findall(r"(\d+) MiB for ([\w.-]+)", refused())
            held = {model.info.name: model.ledger.model_bytes for model in (first, second)}
            assert {name: int(size) for size, name in sizes} == {n: -(-size // MIB) for n, size in held.items()}
            assert [name for _, name in sizes] == sorted(held, key=lambda name: -held[name])
            # A process of its own holds none of them.
            with pytest.raises(BudgetExceeded) as caught:
                plan("demo", memory=20 * MIB, held_bytes=HELD)
            assert "already" not in str(caught.value)
        assert len(re.findall(r"MiB for ", refused())) == 1
    assert "already" not in refused()
