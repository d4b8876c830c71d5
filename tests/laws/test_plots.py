"""Laws of plots: drawn is what ``edge-spec bench --json`` has printed."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import plot_bench
import pytest
from plot_bench import Line

Texts = Callable[[Sequence[Line]], set[str]]

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


@pytest.mark.long
def test_speeds_are_drawn_with_their_modes(texts: Texts) -> None:
    verdict = {"verdict": {"model": "demo", "engine": "onnx"}}
    assert {"demo on onnx", "off", "100.0 tokens/s", "auto", "160.0 tokens/s"} <= texts([*SPEEDS, verdict])
