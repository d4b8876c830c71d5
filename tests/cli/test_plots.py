"""Laws of plots: what cannot be drawn is refused before anything is measured; drawn is what was measured."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from edge_spec.cli import main
from edge_spec.evaluation.bench import Speed
from edge_spec.evaluation.curves import CostOfRows


def failed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as left:
        main(["bench", "demo", *arguments])
    said = capsys.readouterr()
    assert left.value.code and said.out == ""
    return said.err


def test_a_plot_of_no_known_kind_or_place_is_refused_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ".svg" in failed(capsys, "--plot", str(tmp_path / "plot.txt"))
    assert "not a folder" in failed(capsys, "--plot", str(tmp_path / "missing" / "plot.svg"))
    assert not any(tmp_path.iterdir())


def test_without_matplotlib_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("edge_spec.cli.plotting.find_spec", lambda name: None)
    assert "edge-spec[benchmarks]" in failed(capsys, "--curves", "--plot", str(tmp_path / "plot.svg"))


def test_curves_and_chains_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from edge_spec.cli.plotting import draw_curves

    target = CostOfRows(model="target", depth=32, milliseconds={1: 4.0, 4: 5.0, 8: 8.0})
    deep = CostOfRows(model="target", depth=512, milliseconds={1: 5.0, 4: 6.5, 8: 9.0})
    draft = CostOfRows(model="sequence", depth=32, milliseconds={1: 0.5, 4: 0.6})
    path = tmp_path / "plot.svg"
    draw_curves(path, [target, deep, draft], "demo on onnx")
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", path.read_text("utf-8"))
    assert {"demo on onnx", "target, 512 tokens before", "sequence, 32 tokens before", "70% accepted"} <= set(texts)
    again = tmp_path / "again.svg"
    draw_curves(again, [target, deep, draft], "demo on onnx")
    assert again.read_bytes() == path.read_bytes()
    draw_curves(again, [target], "alone")
    assert "accepted" not in again.read_text("utf-8")


def test_speeds_are_drawn_with_their_intervals(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from edge_spec.cli.plotting import draw_speeds

    speeds = [
        Speed(
            mode=mode,
            tokens_per_s=100 * gain,
            speed_up=gain,
            total_speed_up=gain,
            interval=(gain - 0.1, gain + 0.1),
            mean_length=1.0,
            acceptance=0.0,
            draft_share=0.0,
            verify_share=1.0,
            rest_share=0.0,
            share_of_limit=gain,
            drafter="",
            shape="",
            rows=1,
            same_text=True,
        )
        for mode, gain in (("off", 1.0), ("auto", 1.6))
    ]
    path = tmp_path / "speeds.png"
    draw_speeds(path, speeds, "demo on onnx")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert "matplotlib" in sys.modules
