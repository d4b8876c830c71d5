"""Laws of what a plan tells of other options: whatever the budget allows is told, and what is told comes true."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from edge_spec.cli import main
from edge_spec.controller.candidates import STAGES
from edge_spec.controller.plan import Alternative, Plan
from edge_spec.engines.onnx.opener import OnnxOpener
from edge_spec.loading import plan
from edge_spec.models import inspect, resolve_family

HELD = 30 << 20


@pytest.fixture(scope="module")
def thresholds() -> Mapping[str, int]:
    """Where our engine can just draft with a model, llama.cpp has room for a longer context, or for more models."""
    return plan("demo", memory=1 << 40, held_bytes=HELD, engine="onnx").thresholds


@pytest.mark.long
@pytest.mark.parametrize(
    ("asked", "stages"),
    [
        ({}, ("drafter", "hierarchy")),
        ({"engine": "onnx"}, ("tables", "drafter", "hierarchy")),
        ({"engine": "onnx", "kv_k": "f16", "kv_v": "f16"}, ("drafter", "hierarchy")),
        ({"engine": "onnx", "n_ctx": 256, "speculation": "ngram"}, ("drafter", "hierarchy")),
        ({"engine": "onnx", "min_n_ctx": 300}, ("drafter", "hierarchy")),
        ({"engine": "onnx", "speculation": "hierarchy"}, ("hierarchy",)),
        ({"engine": "onnx", "speculation": "off"}, ("hierarchy",)),
        ({"draft_limit": 15}, ("hierarchy",)),
        ({"min_n_ctx": 300}, ("hierarchy",)),
        ({"speculation": "ngram"}, ("drafter",)),
    ],
    ids=str,
)
def test_what_the_budget_allows_is_told_and_comes_true(
    asked: dict[str, Any], stages: tuple[str, ...], thresholds: Mapping[str, int]
) -> None:
    seen: list[Alternative] = []
    for stage in stages:
        given = {"memory": thresholds[stage] + (1 << 20), "held_bytes": HELD, **asked}
        found = plan("demo", **given)
        _check(found)
        seen += found.alternatives
        for each in found.alternatives:
            assert plan("demo", **{**given, **each.arguments}).chosen == each.candidate
    assert seen


def _check(found: Plan) -> None:
    """Each stage above the chosen one that the budget allows is told once, then at most one longer context."""
    chosen, budget = found.chosen, found.budget_bytes
    above = STAGES[STAGES.index(chosen.stage) + 1 :]
    told = [each.candidate for each in found.alternatives]
    with_drafters = [each for each in told if each.stage in above]
    allowed = [stage for stage in above if found.thresholds.get(stage, budget + 1) <= budget]
    assert [each.stage for each in with_drafters] == allowed
    longer = [each for each in told if each not in with_drafters]
    assert len(longer) <= 1
    assert all(each.n_ctx > max(chosen.n_ctx, *(other.n_ctx for other in with_drafters), 0) for each in longer)
    described = [each.described for each in (chosen, *found.runners_up, *told)]
    assert len(set(described)) == len(described)
    assert all(each.needed_bytes <= budget for each in told)


def test_a_longer_context_with_fewer_drafters_is_told(thresholds: Mapping[str, int]) -> None:
    given: dict[str, Any] = {"memory": thresholds["hierarchy"], "held_bytes": HELD, "engine": "onnx"}
    found = plan("demo", speculation="hierarchy", **given)
    (other,) = found.alternatives
    assert found.chosen.n_ctx < other.candidate.n_ctx == plan("demo", speculation="off", **given).chosen.n_ctx
    assert other.arguments == {"speculation": other.candidate.mode.name}


def test_nothing_is_told_where_nothing_is_lacking() -> None:
    assert plan("demo", memory="1GiB", held_bytes=HELD, engine="onnx").alternatives == ()


def test_an_engine_is_not_told_whose_files_cannot_be_made(
    thresholds: Mapping[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OnnxOpener, "prepare", lambda self, file: "its transcription does not fit the disk")
    found = plan("demo", memory=thresholds["drafter"], held_bytes=HELD, speculation="off")
    assert found.alternatives
    assert {each.candidate.engines["target"].name for each in found.alternatives} == {"llama"}


def test_looking_at_a_plan_writes_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither where no folder is kept between runs."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    target = inspect(resolve_family("demo").target)
    assert OnnxOpener(cache_dir=None, only_look=True).prepare(target) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_the_command_tells_options_that_lead_there(
    thresholds: Mapping[str, int], capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*more: str) -> str:
        with pytest.raises(SystemExit) as left:
            # Interpreter and libraries take more here than there, so another engine has to leave room.
            main(["plan", "demo", "--engine", "onnx", *more])
        assert not left.value.code
        return capsys.readouterr().out

    least = json.loads(said("--memory", "1GiB", "--json"))["thresholds"]["hierarchy"]
    memory = ("--memory", str(least + (1 << 20)))
    told = re.findall(r"^ +[\d,]+ MiB  with (--.*): (speculation .*)$", said(*memory), re.MULTILINE)
    as_json = json.loads(said(*memory, "--json"))["alternatives"]
    assert told and len(as_json) == len(told)
    for (options, described), each in zip(told, as_json, strict=True):
        assert said(*memory, *shlex.split(options)).splitlines()[0] == described
        assert ", ".join(f"{name} {value}" for name, value in each["choices"].items()) == described
        assert each["arguments"]
