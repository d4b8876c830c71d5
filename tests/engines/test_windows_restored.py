"""Laws of models whose layers see a window of the text: a restored cache goes back no further than it was saved for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from families import FAMILIES
from gguf_files import GEMMA3, write_gguf

import edge_spec
from edge_spec.engines.llama.engine import open_llama
from edge_spec.engines.llama.settings import LlamaSettings
from edge_spec.llama_cpp.weights import LlamaWeights
from edge_spec.speculation.tree import Tree

MADE: dict[str, dict[str, Any]] = {"gemma3": GEMMA3, "olmo2": FAMILIES["olmo2 with windows"]}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("windows")
    return lambda name: write_gguf(folder / f"{name}.gguf", **MADE[name])


@pytest.mark.parametrize("further", [0, 5, 40])
@pytest.mark.parametrize("name", MADE)
def test_a_restored_cache_gives_the_rows_of_a_text_that_was_read(
    name: str, further: int, made: Callable[[str], Path]
) -> None:
    weights = LlamaWeights(made(name))
    model, _ = open_llama(weights, LlamaSettings(n_ctx=200, n_threads=1), file=name, cache_dir=None)
    try:
        text = np.random.default_rng(0).integers(256, model.n_vocab - 1, 150).tolist()

        def row(place: int) -> bytes:
            found = model.decode(Tree.sequence(text[place : place + 1])).tobytes()
            model.keep([0])
            return found

        model.prefill(text[:70])
        wanted = [row(70 + n) for n in range(further + 1)]
        state = model.save()
        model.rollback(0)
        model.prefill(text[100:110])
        model.restore(state)
        assert model.n_past == 71 + further
        model.rollback(70)
        assert model.n_past in (0, 70)
        model.prefill(text[model.n_past : 70])
        assert [row(70 + n) for n in range(further + 1)] == wanted
    finally:
        model.close()
        weights.close()


@pytest.mark.parametrize("name", MADE)
def test_what_is_asked_again_after_others_has_the_same_text_and_probabilities(
    name: str, made: Callable[[str], Path], probe_cache: Path
) -> None:
    prompts = ["One day " * 12, "Yes", "One day " * 12, "One day " * 12, "A cat", "One day " * 12]
    given: dict[str, Any] = {"engine": "llama", "n_ctx": 200, "n_threads": 1, "cache_dir": probe_cache}
    texts = []
    for reuse in (False, True):
        with edge_spec.load(made(name), speculation="off", **given) as model:
            replies = [
                model.generate(
                    prompt, raw=True, seed=n, temperature=1, max_tokens=50, ignore_eos=True, logprobs=1, reuse=reuse
                )
                for n, prompt in enumerate(prompts)
            ]
            texts.append([[(each.id, each.logprob) for each in reply.events()] for reply in replies])
    assert texts[0] == texts[1]
