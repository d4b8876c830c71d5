"""Laws of what pays, and of what bench remembers of it."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from letters import LetterTokenizer

import edge_spec
from edge_spec import TextModel
from edge_spec.cli import main
from edge_spec.controller.measurements import Gain
from edge_spec.evaluation.bench import bench
from edge_spec.loading import plan
from edge_spec.speculation.drafters.ngram import NgramDrafter
from edge_spec.speculation.drafters.plain import NoDrafter
from edge_spec.speculation.loop import Slot
from edge_spec.speculation.target import Target
from edge_spec.testing import TableModel, random_table


def test_a_gain_pays_if_it_is_large_and_sure() -> None:
    def pays(speed_up: float, low: float, drafted: int = 500) -> bool:
        return Gain(speed_up=speed_up, low=low, high=2.5, drafted=drafted, rounds=300, mode="tree").pays

    assert pays(1.05, 1.01) and pays(2.0, 1.5)
    assert not pays(1.04, 1.03) and not pays(1.5, 0.9) and not pays(1.5, 1.0)
    assert not pays(2.0, 1.5, drafted=0)


@pytest.mark.parametrize(("prompts", "kept"), [(["ab", "ba", "cab"], True), (["ab", "ba"], False)])
def test_bench_remembers_what_enough_prompts_have_shown(prompts: list[str], kept: bool) -> None:
    told: list[Gain] = []

    def open_model(mode: str) -> TextModel:
        target = TableModel(random_table(4, order=1, seed=1), n_ctx=200)
        drafter = NoDrafter() if mode == "off" else NgramDrafter(shortest=1)
        return TextModel(
            Target(Slot(target, drafter)),
            lambda: 3,
            LetterTokenizer(end=3),
            mode=mode,
            keep_gain=told.append,
        )

    _, found = bench(open_model, prompts, modes=["ngram"], rounds=1, max_tokens=150, ignore_eos=True)
    assert bool(told) == kept
    for gain in told:
        assert (gain.mode, gain.speed_up, gain.low, gain.high) == ("ngram", found.speed_up, *found.interval)
        assert gain.drafted == found.drafted > 0
        assert gain.rounds == pytest.approx(450 / found.mean_length)


@pytest.mark.long
def test_plain_use_states_no_speed_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """However much drafts brought: what the machine did meanwhile is not known. `bench` and `pair` compare by turns."""
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    given: dict[str, Any] = {"n_ctx": 512, "n_threads": 1, "cache_dir": tmp_path / "edge-spec"}

    def stated() -> tuple[object, object]:
        with suppress(SystemExit):
            main(["list", "--json"])
        models = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert "demo" in {each["name"] for each in models}
        return plan("demo", **given).gains, [each["speed_up"] for each in models if each["speed_up"]]

    with edge_spec.load("demo", **given) as model:
        drafted = 0
        for n in range(4):
            # Greedily, so that drafts pay on every processor.
            reply = model.generate(f"Tell me {n} stories.", temperature=0, max_tokens=240, ignore_eos=True)
            reply.read()
            drafted += reply.statistics.drafted
        model.generate_many(["Hello", "Hi"], seed=1, max_tokens=60).read()
        conversation = model.chat(seed=1, max_tokens=60)
        for question in ("Hello", "And then?"):
            conversation.send(question).read()
        assert drafted > 50
    assert stated() == ({}, [])
    # What these two call is seen.
    with edge_spec.load("demo", **given) as model:
        model.keep_gain(Gain(speed_up=1.5, low=1.4, high=1.6, drafted=500, rounds=300, mode=model.mode))
    assert stated()[0]
