"""Laws of plots: drawn is what ``edge-spec bench --json`` has printed, and what follows from it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import plot_bench
import pytest
from plot_bench import Line, speed_up_of_chains

Texts = Callable[[Sequence[Line]], set[str]]

CURVES = [
    {"file": "demo", "engine": "onnx", "role": role, "depth": depth, "milliseconds": milliseconds}
    for role, depth, milliseconds in (
        ("target", 32, {"1": 4.0, "4": 5.0, "8": 8.0}),
        ("target", 512, {"1": 5.0, "4": 6.5, "8": 9.0}),
        ("draft", 32, {"1": 0.5, "4": 0.6}),
    )
]
SPEEDS = [
    {"mode": mode, "tokens_per_s": 100 * gain, "speed_up": gain, "interval": [gain - 0.1, gain + 0.1]}
    for mode, gain in (("off", 1.0), ("auto", 1.6))
]


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Texts:
    """Draws lines by the command, twice, and returns the texts of the plot."""
    pytest.importorskip("matplotlib")

    def drawn(lines: Sequence[Line]) -> set[str]:
        given, plots = tmp_path / "lines.jsonl", [tmp_path / "plot.svg", tmp_path / "again.svg"]
        given.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
        for plot in plots:
            monkeypatch.setattr(sys, "argv", ["plot_bench.py", str(given), str(plot)])
            plot_bench.main()
        assert plots[0].read_bytes() == plots[1].read_bytes()
        return set(re.findall(r"<text[^>]*>([^<]*)</text>", plots[0].read_text("utf-8")))

    return drawn


def test_curves_and_chains_are_drawn(texts: Texts) -> None:
    chains = {f"{chance}% accepted" for chance in (30, 50, 70, 90)}
    labels = {"demo on onnx", "target, 32 tokens before", "target, 512 tokens before"}
    assert labels | {"draft, 32 tokens before"} | chains <= texts(CURVES)
    alone = texts(CURVES[:2])
    assert labels <= alone and not chains & alone


def test_speeds_are_drawn_with_their_modes(texts: Texts) -> None:
    verdict = {"verdict": {"model": "demo", "engine": "onnx"}}
    assert {"demo on onnx", "off", "100.0 tokens/s", "auto", "160.0 tokens/s"} <= texts([*SPEEDS, verdict])


@pytest.mark.parametrize("chance", [0.0, 0.5, 0.9])
def test_chains_gain_what_their_tokens_save_of_single_decodes(chance: float) -> None:
    # Rows cost nothing: three tokens of the drafter against the single decodes that they save.
    tokens = 1 + chance + chance**2 + chance**3
    assert speed_up_of_chains({1: 4.0, 8: 4.0}, 0.5, 3, chance) == pytest.approx(tokens * 4 / (4 + 3 * 0.5))
    # Each row costs a whole decode: nothing can be gained.
    assert speed_up_of_chains({1: 4.0, 8: 32.0}, 0.5, 3, chance) < 1
