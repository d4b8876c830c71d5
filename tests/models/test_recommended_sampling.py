"""Laws of the sampler that a file recommends: it holds where the user says nothing, and is shown."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import gguf
import pytest
from chat_world import chat_model, chat_table
from gguf_files import write_gguf

from edge_spec.models import inspect, resolve_family
from edge_spec.models.recommended_sampling import of_generation_config, of_gguf
from edge_spec.sampling import SamplerSettings

KEYS = gguf.constants.Keys.General
IN_GGUF = {
    KEYS.SAMPLING_TEMP: ("temperature", 0.6),
    KEYS.SAMPLING_TOP_K: ("top_k", 20),
    KEYS.SAMPLING_TOP_P: ("top_p", 0.9),
    KEYS.SAMPLING_MIN_P: ("min_p", 0.1),
    KEYS.SAMPLING_PENALTY_REPEAT: ("repeat_penalty", 1.05),
    KEYS.SAMPLING_PENALTY_LAST_N: ("penalty_window", 32),
    KEYS.SAMPLING_XTC_PROBABILITY: ("xtc_probability", 0.5),
    KEYS.SAMPLING_XTC_THRESHOLD: ("xtc_threshold", 0.2),
    KEYS.SAMPLING_MIROSTAT: ("mirostat", 2),
    KEYS.SAMPLING_MIROSTAT_TAU: ("mirostat_tau", 4.0),
    KEYS.SAMPLING_MIROSTAT_ETA: ("mirostat_eta", 0.2),
}


def test_every_key_of_a_gguf_has_its_setting(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", extra={key: value for key, (_, value) in IN_GGUF.items()})
    # Written as 32 bits, and still what the author typed.
    assert inspect(path).sampling == dict(IN_GGUF.values())


@pytest.mark.parametrize("value", ["hot", -1.0, float("nan"), float("inf"), True, None, [0.5]])
def test_what_can_be_no_setting_is_passed_over(value: Any) -> None:
    in_gguf = of_gguf({KEYS.SAMPLING_TEMP: value, KEYS.SAMPLING_TOP_K: 7})
    in_json = of_generation_config({"do_sample": True, "temperature": value, "top_k": 7})
    assert SamplerSettings.valid(in_gguf) == SamplerSettings.valid(in_json) == {"top_k": 7}


def test_the_settings_of_transformers_mean_here_what_they_mean_there() -> None:
    filters = {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "min_p": 0.01, "typical_p": 0.9}
    assert of_generation_config({"do_sample": True, **filters, "eos_token_id": 1}) == filters
    assert of_generation_config({"do_sample": False, **filters}) == of_generation_config(filters) == {}
    penalty = {"repeat_penalty": 1.05, "penalty_window": -1}
    assert of_generation_config({"repetition_penalty": 1.05}) == penalty
    assert of_generation_config({"repetition_penalty": 1.0}) == {}


def test_a_published_folder_recommends_what_its_file_says(copied: Callable[[str], Path]) -> None:
    folder = copied("plain")
    assert inspect(folder).sampling == {}
    path = folder / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), "do_sample": True, "temperature": 0.3}), "utf-8")
    assert inspect(folder).sampling == {"temperature": 0.3}


def test_the_demo_family_recommends_nothing() -> None:
    assert inspect(resolve_family("demo").target).sampling == {}


@pytest.fixture
def recommends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, Any]], None]:
    """Lets edge-spec recommend these settings, by fingerprint, and nothing else."""
    package = tmp_path / "package"
    (package / "family").mkdir(parents=True)
    (package / "no_family.py").touch()

    def recommend(settings: dict[str, Any]) -> None:
        (package / "family" / "sampling.json").write_text(json.dumps(settings), "utf-8")
        monkeypatch.setattr("edge_spec.models.recommended_sampling.files", lambda name: package)

    return recommend


def test_edge_spec_recommends_for_a_content_however_the_file_is_named(
    tmp_path: Path, recommends: Callable[[dict[str, Any]], None]
) -> None:
    path = write_gguf(tmp_path / "model.gguf")
    chosen = {"temperature": 0.6, "dry_multiplier": 0.8}
    recommends({"0" * 32: {"temperature": 0.1}, inspect(path).fingerprint: chosen})
    moved = path.rename(tmp_path / "other.gguf")
    found = inspect(moved)
    assert (found.sampling, found.sampling_by) == (chosen, "edge-spec")
    # The name alone recommends nothing.
    assert inspect(write_gguf(path, seed=1)).sampling == {}


def test_what_edge_spec_recommends_stands_instead_of_what_the_file_does(
    tmp_path: Path, recommends: Callable[[dict[str, Any]], None]
) -> None:
    path = write_gguf(tmp_path / "model.gguf", extra={KEYS.SAMPLING_TEMP: 0.3, KEYS.SAMPLING_TOP_K: 5})
    before = inspect(path)
    assert (before.sampling, before.sampling_by) == ({"temperature": 0.3, "top_k": 5}, "file")
    recommends({before.fingerprint: {"temperature": 0.6}})
    assert inspect(path) == replace(before, sampling={"temperature": 0.6}, sampling_by="edge-spec")


def test_what_edge_spec_recommends_are_settings_of_files_that_are_known() -> None:
    smollm2 = inspect(resolve_family("smollm2").target)
    (path,) = Path(str(files("edge_spec.models"))).glob("*/sampling.json")
    assert path.parent.name == "smollm2"
    assert json.loads(path.read_text("utf-8")) == {smollm2.fingerprint: smollm2.sampling}
    assert SamplerSettings.valid(smollm2.sampling) == smollm2.sampling
    assert SamplerSettings(**smollm2.sampling) != SamplerSettings()
    told = re.search(
        r"temperature ([\d.]+), and DRY with multiplier ([\d.]+), base ([\d.]+) and an allowed length of (\d+) "
        r"over the last (\d+) tokens",
        path.with_name("README.md").read_text("utf-8"),
    )
    names = ("temperature", "dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_window")
    assert told is not None
    assert [float(number) for number in told.groups()] == [smollm2.sampling[name] for name in names]


def test_it_holds_where_nothing_is_given_and_is_told() -> None:
    file = replace(inspect(resolve_family("demo").target), sampling={"temperature": 0.3, "top_k": 5})
    with chat_model(chat_table(), files={"target": file}) as model, chat_model(chat_table()) as other:
        assert (model.info.sampling, model.info.sampling_by) == ({"temperature": 0.3, "top_k": 5}, "file")
        assert (other.info.sampling, other.info.sampling_by) == ({}, "")
        assert model.info.to_json()["sampling"] == {"temperature": 0.3, "top_k": 5}
        wanted = SamplerSettings(temperature=0.3, top_k=5, seed=1)
        assert model.generate("abc", seed=1).settings == wanted
        assert model.generate("abc", seed=1, top_k=9).settings == replace(wanted, top_k=9)
        # With the settings of a reply the text is the same, whatever the file recommends.
        text = model.generate("abc", seed=1, max_tokens=40).read()
        assert other.generate("abc", seed=1, max_tokens=40, temperature=0.3, top_k=5).read() == text
        (one, _) = model.generate_many(["abc", "d"], seed=1, max_tokens=40).read()
        assert one == text
        assert model.chat(seed=1, max_tokens=40).send("abc").settings == wanted
