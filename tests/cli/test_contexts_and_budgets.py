"""Laws of requests: at least so much context, a profile named before loading, budgets that cannot be kept."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import edge_spec
from edge_spec.cli import main
from edge_spec.errors import BudgetExceeded, SettingsError
from edge_spec.loading import plan

pytestmark = pytest.mark.long

MIB = 1 << 20
HELD = 60 * MIB


# --- at least so many tokens


@pytest.mark.parametrize("engine", ["llama", "onnx"])
def test_what_memory_has_room_for_beyond_the_least_context_is_taken(engine: str) -> None:
    asked: dict[str, Any] = {"held_bytes": HELD, "engine": engine, "n_threads": 1}
    requested = plan("demo", memory="1GiB", n_ctx=300, **asked).chosen
    seen = []
    for more in (0, MIB // 2, MIB, 2 * MIB, 4 * MIB, 400 * MIB):
        budget = requested.needed_bytes + more
        found = plan("demo", memory=budget, min_n_ctx=300, **asked).chosen
        context = int(found.choices["context"])
        assert context >= 300
        assert found.needed_bytes <= budget
        # More context costs neither speed nor precision.
        for name in ("speculation", "kv", "chunk", "rows", "weights"):
            assert found.choices.get(name) == requested.choices.get(name)
        if context < 1024:
            longer = min(1024, context + 256 - context % 256)
            assert plan("demo", memory="1GiB", n_ctx=longer, **asked).chosen.needed_bytes > budget
        seen.append(context)
    assert seen == sorted(seen)
    assert (seen[0], seen[-1]) == (300, 1024)


def test_a_least_context_that_does_not_fit_is_refused_and_kept() -> None:
    least = plan("demo", memory="1GiB", held_bytes=HELD, min_n_ctx=900).thresholds["fits"]
    with pytest.raises(BudgetExceeded, match=r"it would fit$"):
        plan("demo", memory=least - 1, held_bytes=HELD, min_n_ctx=900)
    # Beyond what the model was trained for there is nothing to be gained.
    assert plan("demo", memory="1GiB", held_bytes=HELD, min_n_ctx=3000).chosen.choices["context"] == 3000
    with pytest.raises(SettingsError, match="both"):
        plan("demo", memory="1GiB", held_bytes=HELD, n_ctx=900, min_n_ctx=900)
    with pytest.raises(SettingsError):
        plan("demo", memory="1GiB", held_bytes=HELD, min_n_ctx=0)


def test_a_model_with_a_least_context_says_how_much_it_got(probe_cache: Path) -> None:
    with edge_spec.load("demo", min_n_ctx=300, n_threads=1, cache_dir=probe_cache, speculation="off") as model:
        assert model.n_ctx == 1024
        assert any("1024, more than the 300" in note for note in model.notes)
        assert dict(model.profile.facts)["n_ctx"] == "1024"
        model.ledger.check_integrity()


def test_the_command_takes_a_least_context(capsys: pytest.CaptureFixture[str]) -> None:
    found = {}
    for asked in ("300+", "300"):
        with pytest.raises(SystemExit) as left:
            main(["plan", "demo", "--ctx", asked, "--memory", "2GiB", "--json"])
        assert not left.value.code
        found[asked] = json.loads(capsys.readouterr().out)["chosen"]["choices"]["context"]
    assert found == {"300+": 1024, "300": 300}


@given(st.sampled_from(["+", "many", "300++", "+300", "300-", "3e3", "3 00", "²", "9" * 30 + "+"]))
def test_a_context_that_is_no_number_is_wrong_usage(asked: str) -> None:
    with pytest.raises(SystemExit) as left:
        main(["plan", "demo", "--ctx", asked])
    assert left.value.code == 2


# --- the profile


@pytest.mark.parametrize("engine", ["llama", "onnx"])
def test_a_plan_names_the_profile_that_results_will_carry(engine: str, tmp_path: Path) -> None:
    asked: dict[str, Any] = {"engine": engine, "n_ctx": 640, "n_threads": 1, "cache_dir": tmp_path}
    before = plan("demo", **asked)
    assert (before.engine, before.profile) == (engine, None)
    with edge_spec.load("demo", **asked) as model:
        profile = model.profile
    assert plan("demo", **asked).profile == {"name": profile.name, **dict(profile.facts)}
    # What was found out of a model holds for a shorter context that can be read as deep; its profile is another one.
    other = plan("demo", **{**asked, "n_ctx": 600}).profile
    assert other is not None
    assert (other["name"] != profile.name, other["n_ctx"]) == (True, "600")


def test_the_command_prints_the_profile(probe_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with edge_spec.load("demo", n_ctx=300, speculation="off", n_threads=1, cache_dir=probe_cache) as model:
        profile = model.profile
    arguments = ["plan", "demo", "--ctx", "300", "--speculation", "off", "--threads", "1"]
    arguments += ["--cache-dir", str(probe_cache)]
    with pytest.raises(SystemExit):
        main(arguments)
    assert f"numerics profile {profile.name}\nthreads 1\n" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main([*arguments, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["profile"] == {"name": profile.name, **dict(profile.facts)}
    assert found["threads"] == {"one": 1, "several": 1, "prompt": 1}


# --- budgets that cannot be

BUDGETS = {
    "10MiB": r"raise --memory, the minimum is \d+ MiB \(context 256, ",
    "0": "write 2GiB",
    "banana": "write 2GiB",
    "30MiB": "raise --memory",
    "900TiB": "choose a smaller --memory",
}


@pytest.mark.parametrize("memory", BUDGETS)
@pytest.mark.parametrize("verb", ["run", "chat", "plan"])
def test_a_budget_that_cannot_be_is_answered_with_what_would_do_in_one_short_line(
    verb: str, memory: str, probe_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["-p", "Hello"] if verb == "run" else []
    with pytest.raises(SystemExit) as left:
        main([verb, "demo", "--memory", memory, "--cache-dir", str(probe_cache), *more])
    said = capsys.readouterr()
    if (verb, memory) == ("plan", "900TiB"):
        # A plan may be for another computer.
        assert not left.value.code
        assert "this computer has" in said.out
        assert "smallest budgets:" in said.out
        return
    assert (left.value.code, said.out) == (2 if memory in ("0", "banana") else 1, "")
    (line,) = said.err.splitlines()
    assert line.startswith("edge-spec: error: ")
    assert re.search(BUDGETS[memory], line)
    assert len(line) < 250
