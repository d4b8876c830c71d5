"""Laws of what bench says: how much was drafted stands beside what was accepted of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edge_spec.cli.bench import show_speeds
from edge_spec.evaluation.bench import Speed

OFF = Speed(
    mode="off",
    tokens_per_s=100.0,
    speed_up=1.0,
    total_speed_up=1.0,
    interval=(1.0, 1.0),
    mean_length=1.0,
    drafted=0,
    acceptance=0.0,
    draft_rounds=0.0,
    draft_share=0.0,
    verify_share=0.9,
    rest_share=0.1,
    share_of_limit=1.0,
    drafter="",
    shape="",
    rows=1,
    same_text=True,
)
AUTO = replace(
    OFF,
    mode="auto",
    mean_length=1.002,
    interval=(0.98, 1.02),
    drafted=2,
    acceptance=1.0,
    draft_rounds=0.002,
    draft_share=0.01,
    verify_share=0.89,
    drafter="intermediate",
    shape="chain",
    rows=2,
)


def test_a_mode_that_hardly_drafts_is_not_said_to_be_accepted_throughout(capsys: pytest.CaptureFixture[str]) -> None:
    about = {"model": "demo", "engine": "onnx", "processor": "", "sampling": {"temperature": 0.8, "top_k": 5}}
    show_speeds([OFF, AUTO], about, n_replies=9)
    assert (
        capsys.readouterr().out
        == """\
sampler: temperature 0.8, top_k 5; else edge-spec's defaults

mode  tokens/s  speed-up   interval  total  tokens/round  drafted  accepted  drafting  verifying
off      100.0      1.00  1.00-1.00   1.00          1.00        0         -        0%        90%
auto     100.0      1.00  0.98-1.02   1.00          1.00        2       2/2        1%        89%

best here: off; no single mode is significantly faster than plain decoding
auto (chain of the intermediate model, 2 rows, in 0.2% of the rounds), 1.00 times as fast as plain decoding \
(95 %: 0.98 to 1.02)
  1.00 tokens/round: 100% of what that would bring if drafts and their rows took no time
  time: 1% drafting, 89% verifying, 10% sampling and bookkeeping
demo on onnx; 9 replies in every mode: every token is the same
"""
    )
