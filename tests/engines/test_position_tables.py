"""Laws of models with a table of positions, as GPT-2: nothing is computed behind its end, which ends the process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from forked import forked
from position_tables import write_gpt2

from edge_spec import load
from edge_spec.errors import SettingsError, UnsupportedModel

pytestmark = pytest.mark.long

GIVEN: dict[str, Any] = {"engine": "llama", "memory": "4GiB", "n_threads": 1}


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux")
@pytest.mark.parametrize("speculation", ["off", "ngram"])
def test_a_text_fills_the_context_that_a_table_of_positions_leaves(speculation: str, tmp_path: Path) -> None:
    path = write_gpt2(tmp_path / "gpt2.gguf", 128)

    def write() -> None:
        # Calibrating, and drafts at the end of a text, compute rows behind its end.
        with load(path, speculation=speculation, cache_dir=tmp_path, **GIVEN) as model:
            reply = model.generate("aaaa" * 8, raw=True, seed=1, ignore_eos=True)
            reply.read()
            print(model.n_ctx, reply.finish_reason)

    outcome = forked(write, seconds=300.0)
    assert (outcome.code, outcome.out) == (0, "96 context\n"), outcome.err


def test_a_longer_context_than_a_table_of_positions_is_refused(tmp_path: Path) -> None:
    path = write_gpt2(tmp_path / "gpt2.gguf", 128)
    with pytest.raises(SettingsError, match=r"n_ctx is 97, and gpt2\.gguf knows 128 .*; use `n_ctx=96` or less"):
        load(path, n_ctx=97, cache_dir=tmp_path, **GIVEN)
    with pytest.raises(SettingsError, match=r"min_n_ctx is 128, and .*; use `min_n_ctx=96` or less"):
        load(path, min_n_ctx=128, cache_dir=tmp_path, **GIVEN)
    with pytest.raises(UnsupportedModel, match="knows 33 positions, and drafts may need 32"):
        load(write_gpt2(tmp_path / "short.gguf", 33), cache_dir=tmp_path, **GIVEN)
