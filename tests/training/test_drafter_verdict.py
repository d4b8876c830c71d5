"""Laws of what ``edge-spec drafter make`` says in the end, and of what it installs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from edge_spec.cli import main
from edge_spec.training.drafter.card import table_of
from edge_spec.training.drafter.make import DrafterMaker
from edge_spec.training.drafter.verdict import pays, verdict_of


def measured(*intervals: Sequence[float]) -> dict[str, Any]:
    """Return what might be measured, greedily and at temperature 0.8, with these intervals of the gain."""
    found = {}
    for kind, interval in zip(("greedy", "temperature 0.8"), intervals, strict=True):
        modes = ("off", "ngram", "sequence", "auto")
        speeds = [{"mode": mode, "tokens_per_s": 100.0, "speed_up": 1.1, "interval": (1.0, 1.25)} for mode in modes]
        found[kind] = {
            "share": 0.61,
            "tokens_per_round": {"chain of 4": 2.5},
            "step": 0.125,
            "speeds": speeds,
            "gain": {"interval": interval, "ratio": sum(interval) / 2},
        }
    return found


@pytest.mark.parametrize(
    ("greedy", "sampled", "expected"),
    [
        ((1.1, 1.3), (1.05, 1.2), True),
        ((0.9, 1.3), (1.05, 1.2), True),
        ((0.9, 1.3), (0.95, 1.2), False),
        ((1.1, 1.3), (0.8, 0.95), False),
    ],
)
def test_a_drafter_pays_where_one_kind_of_text_gains_and_none_loses(
    greedy: tuple[float, float], sampled: tuple[float, float], expected: bool
) -> None:
    found = measured(greedy, sampled)
    assert pays(found) == expected
    assert ("does not pay" in verdict_of(found)) != expected
    assert f"{greedy[0]:.2f} to {greedy[1]:.2f}" in verdict_of(found)


def test_modes_that_cannot_run_have_no_column() -> None:
    lines = table_of(measured((1, 2), (1, 2))).splitlines()
    assert lines[0] == "| text | first token | tokens per round, chain of 4 | draft step |"
    assert lines[2] == "| greedy | 0.61 | 2.50 | 0.12 of a step of the target |"
    assert lines[5] == "| text | plain, tokens/s | ngram | sequence | auto |"
    assert lines[7] == "| greedy | 100 | 1.10x (1.00-1.25) | 1.10x (1.00-1.25) | 1.10x (1.00-1.25) |"


@pytest.mark.parametrize("does_pay", [True, False])
@pytest.mark.parametrize("option", [[], ["--install"], ["--no-install"]])
def test_only_a_drafter_that_pays_is_installed_unasked(
    does_pay: bool,
    option: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = measured((1, 2), (1, 2))
    monkeypatch.setattr(DrafterMaker, "run", lambda self: {"measured": found, "pays": does_pay})
    monkeypatch.setattr(DrafterMaker, "install", lambda self: tmp_path / "installed")
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "Some words."}), "utf-8")
    with pytest.raises(SystemExit) as ended:
        main(["drafter", "make", "demo", "--texts", str(tmp_path), "--out", str(tmp_path / "out"), *option])
    assert ended.value.code in (0, None)
    said = capsys.readouterr().out
    assert table_of(found) in said
    installed = option == ["--install"] or (does_pay and not option)
    assert ("Installed for this model" in said) == installed
    assert ("use it with --draft" in said) != installed
    assert ("run the same command with --install" in said) == (not does_pay and not option)
