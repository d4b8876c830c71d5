"""Laws of pairing: drafters are measured, the best is remembered, and what is remembered drafts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gguf_files import write_gguf

import edge_spec
from edge_spec.cli import main
from edge_spec.controller.measurements import Gain
from edge_spec.evaluation.bench import Speed
from edge_spec.evaluation.pairing import best_of, pairings
from edge_spec.models import ModelFile, drafter_of, inspect, resolve_family
from edge_spec.models.made_drafters import choices, choose_drafter, chosen_drafter, forget_drafter, made_drafter_folder
from edge_spec.sampling import SamplerSettings
from edge_spec.speculation.statistics import Statistics


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in ("HOME", "XDG_DATA_HOME", "LOCALAPPDATA", "USERPROFILE"):
        monkeypatch.setenv(name, str(tmp_path))
    return tmp_path


def pairing(speed_up: float, low: float, high: float, *, drafted: int = 500, same_text: bool = True) -> Any:
    return SimpleNamespace(
        acceptance=0.5,
        mean_length=2.0,
        speed_up=speed_up,
        interval=(low, high),
        drafted=drafted,
        tokens_per_s=9.0,
        same_text=same_text,
    )


def test_the_best_drafter_is_significantly_faster() -> None:
    unsure, slow, good = pairing(2.0, 0.9, 3.0), pairing(0.8, 0.7, 0.9), pairing(1.4, 1.2, 1.6)
    once, other_text = pairing(1.9, 1.9, 1.9), pairing(1.8, 1.7, 1.9, same_text=False)
    idle = pairing(1.8, 1.7, 1.9, drafted=0)
    found = [("unsure", unsure), ("slow", slow), ("good", good), ("once", once), ("other", other_text), ("idle", idle)]
    assert best_of(found) == ("good", good)
    assert best_of([*found, ("better", pairing(1.5, 1.01, 2.0))]) == ("better", pairing(1.5, 1.01, 2.0))
    assert best_of([each for each in found if each[0] != "good"]) is None
    assert best_of([]) is None


@pytest.mark.long
def test_a_chosen_drafter_drafts_until_it_is_forgotten(home: Path, probe_cache: Path) -> None:
    family = resolve_family("demo")
    assert family.intermediate is not None and family.draft is not None
    # No family's target, which would bring a drafter.
    path, draft = (Path(shutil.copy(each, home)) for each in (family.intermediate, family.draft))
    target = inspect(path)
    with pytest.raises(edge_spec.EdgeSpecError, match="needs `draft`"):
        edge_spec.load(path, speculation="sequence", cache_dir=probe_cache, n_ctx=256)
    choose_drafter(target, inspect(draft), {"speed_up": 1.5, "interval": [1.2, 1.8]})
    assert drafter_of(target) == draft
    assert [each.speed_up for each in choices(target)] == [(1.5, 1.2, 1.8)]
    with edge_spec.load(path, speculation="sequence", cache_dir=probe_cache, n_ctx=256, n_threads=1) as model:
        assert model.mode == "sequence"
        assert model.generate("Once upon a time", max_tokens=20, temperature=0).read()
    assert forget_drafter(target)
    assert drafter_of(target) is None
    assert not forget_drafter(target)
    for unsure in ({"speed_up": 1.5}, {"speed_up": 1.5, "interval": [0.9, 1.8]}, {"interval": 3}, {}):
        choose_drafter(target, inspect(draft), unsure)
        assert [each.speed_up for each in choices(target)] == [None]


def test_a_choice_whose_file_is_gone_damaged_or_another_one_now_is_passed_over(home: Path) -> None:
    target = inspect(write_gguf(home / "target.gguf"))
    draft = inspect(write_gguf(home / "draft.gguf", n_layers=1))
    choose_drafter(target, draft, {})
    choice = chosen_drafter(target)
    assert choice is not None and choice.path == draft.path
    write_gguf(draft.path, n_layers=1, seed=1)
    assert chosen_drafter(target) is None
    draft.path.unlink()
    assert chosen_drafter(target) is None
    (made_drafter_folder(target) / "chosen.json").write_text("[]")
    assert chosen_drafter(target) is None


@pytest.mark.long
def test_every_drafter_that_fits_is_measured(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = ["--limit", "1", "--rounds", "1", "-n", "4", "--threads", "1", "--cache-dir", str(home), "--json"]
    family = resolve_family("demo")
    with pytest.raises(SystemExit) as left:
        main(["pair", "demo", *few])
    assert not left.value.code
    *measured, verdict = map(json.loads, capsys.readouterr().out.splitlines())
    assert [each["draft"] for each in measured] == [str(family.draft), str(family.intermediate)]
    assert all(each["same_text"] and 0 <= each["acceptance"] <= 1 and each["speed_up"] > 0 for each in measured)
    assert verdict == {"best": None, "remembered": False, "forgotten": False}


class Model:
    """A target with a drafter that halves the rounds; it knows how many others are open."""

    def __init__(self, mode: str, opened: list[str], gains: list[Gain]) -> None:
        self.mode = mode
        self.keep_gain = gains.append
        self._opened = opened

    def __enter__(self) -> Model:
        self._opened.append(self.mode)
        assert len(self._opened) == 1
        return self

    def __exit__(self, *error: object) -> None:
        self._opened.clear()

    def prompt_of(self, prompt: str) -> list[int]:
        return [1]

    def sampler_settings(self, *, seed: int) -> SamplerSettings:
        return SamplerSettings(seed=seed)

    def reply(
        self, tokens: list[int], settings: Any, *, next_limit: Callable[[], int] | None = None, **asked: Any
    ) -> Any:
        n = asked["max_tokens"]
        n_rounds = n if next_limit is not None and next_limit() == 0 else n // 2
        rounds = Statistics(tokens=n, rounds=n_rounds, drafted=n - n_rounds, accepted=n - n_rounds)
        rounds.verify_s = n_rounds / 10
        return SimpleNamespace(read=lambda: "", statistics=rounds, token_ids=[1] * n)


def paired(gains: list[Gain], prompts: list[str], **options: Any) -> Speed:
    """Return what is found of a drafter."""
    opened: list[str] = []
    ((draft, found),) = pairings(["small"], lambda draft, mode: Model(mode, opened, gains), prompts, **options)  # type: ignore[arg-type,return-value]
    assert draft == "small"
    return found


def test_the_target_is_open_once_at_any_time() -> None:
    """Where a model fits alone, its drafters can be measured."""
    found = paired([], ["a", "b"], rounds=2, max_tokens=10)
    assert (found.speed_up, found.acceptance, found.mean_length) == (2.0, 1.0, 2.0)
    assert found.same_text


def test_what_a_drafter_brings_is_remembered_for_plans() -> None:
    gains: list[Gain] = []
    paired(gains, ["a", "b", "c"], rounds=1, max_tokens=100)
    assert gains == [Gain(speed_up=2.0, low=2.0, high=2.0, drafted=150, rounds=150, mode="auto")]
    paired(gains, ["a", "b"], rounds=2, max_tokens=100)
    paired(gains, ["a", "b", "c"], rounds=1, max_tokens=50)
    paired(gains, ["a", "b", "c"], rounds=1, max_tokens=100, remember=False)
    assert len(gains) == 1


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes ``pair`` find these speeds, by the names of files, in place of measuring for minutes."""

    def find(**speeds: Speed) -> None:
        def fake(drafts: list[ModelFile], *rest: Any, **options: Any) -> Iterator[tuple[ModelFile, Speed]]:
            return ((draft, speeds[draft.path.stem.partition("-")[0]]) for draft in drafts)

        monkeypatch.setattr("edge_spec.cli.pair.pairings", fake)

    return find


def test_the_best_is_shown_remembered_replaced_and_forgotten(
    home: Path, measured: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*asked: str) -> str:
        with pytest.raises(SystemExit) as left:
            main(list(asked))
        assert not left.value.code
        return capsys.readouterr().out

    family = resolve_family("demo")
    target = inspect(family.target)
    measured(drafter=pairing(1.5, 1.3, 1.7), intermediate=pairing(1.2, 1.1, 1.3))
    assert said("pair", "demo", "--no-remember").endswith(f"best here: --draft {family.draft}\n")
    assert chosen_drafter(target) is None
    table = said("pair", "demo").splitlines()
    assert table[0].split() == ["drafter", "accepted", "tokens/round", "tokens/s", "speed-up", "interval"]
    assert table[1].split() == ["drafter-q4_0.gguf", "50%", "2.00", "9.0", "1.50", "1.30-1.70"]
    assert table[-1].startswith("best here: drafter-q4_0.gguf, which drafts for target-q4_0.gguf from now on")
    assert drafter_of(target) == family.draft
    # What was measured here is shown here.
    assert "1.50x here (1.30-1.70)" in said("list")
    assert "1.50 times as fast as plain decoding here (1.30 to 1.70)" in said("info", "demo")
    # Another engine has another choice.
    assert drafter_of(target, "llama") is None
    measured(drafter=pairing(0.9, 0.8, 1.0), intermediate=pairing(1.4, 1.2, 1.6))
    said("pair", "demo", "--engine", "llama")
    assert (drafter_of(target), drafter_of(target, "llama")) == (family.draft, family.intermediate)
    # What is not faster any more is not kept; of what was not measured nothing is known.
    measured(drafter=pairing(0.9, 0.8, 1.0), intermediate=pairing(0.9, 0.8, 1.0))
    assert "nothing is changed" in said("pair", "demo", str(family.intermediate))
    assert "the one that was chosen before is forgotten" in said("pair", "demo")
    assert (drafter_of(target), drafter_of(target, "llama")) == (None, family.intermediate)
    assert "is forgotten" in said("pair", "demo", "--forget")
    assert "no choice to forget" in said("pair", "demo", "--forget")


def test_forgetting_with_an_engine_leaves_the_choices_for_others(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def forget(*asked: str) -> str:
        with pytest.raises(SystemExit) as left:
            main(["pair", "demo", "--forget", *asked])
        assert not left.value.code
        return capsys.readouterr().out

    family = resolve_family("demo")
    assert family.draft is not None
    target, draft = inspect(family.target), inspect(family.draft)
    for engine in ("auto", "llama", "onnx"):
        choose_drafter(target, draft, {}, engine)
    assert "is forgotten" in forget("--engine", "llama")
    assert "no choice to forget" in forget("--engine", "llama")
    assert [each.engine for each in choices(target)] == ["auto", "onnx"]
    assert "is forgotten" in forget("--engine", "auto")
    assert [each.engine for each in choices(target)] == ["onnx"]
    choose_drafter(target, draft, {}, "auto")
    assert "is forgotten" in forget()
    assert choices(target) == []


def test_a_drafter_of_another_vocabulary_is_named(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = write_gguf(home / "other.gguf")
    with pytest.raises(SystemExit) as left:
        main(["pair", "demo", str(other)])
    assert left.value.code == 1
    assert "other.gguf cannot draft for target-q4_0.gguf: their tokenizers are" in capsys.readouterr().err
    with pytest.raises(SystemExit) as left:
        main(["pair", str(other)])
    assert left.value.code == 1
    assert "drafter make" in capsys.readouterr().err
