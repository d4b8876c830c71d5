"""Laws of models whose layers see a window of the text: a restored cache is that of a text that was never saved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from families import FAMILIES
from gguf_files import GEMMA3, write_gguf
from lone_text import lone_text

import edge_spec
from edge_spec.engines.llama.engine import open_llama
from edge_spec.engines.llama.library_context import LibraryContext
from edge_spec.engines.llama.settings import LlamaSettings
from edge_spec.llama_cpp.weights import LlamaWeights
from edge_spec.speculation.tree import Tree

pytestmark = pytest.mark.long

TEMPLATE = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\\n' }}{% endfor %}assistant: "
MADE: dict[str, dict[str, Any]] = {
    "gemma3": {**GEMMA3, "chat_template": TEMPLATE},
    "olmo2": FAMILIES["olmo2 with windows"],
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("windows")
    return lambda name: write_gguf(folder / f"{name}.gguf", **MADE[name])


@pytest.mark.parametrize(
    "settings",
    [{}, {"kv_k": "f16"}, {"kv_k": "f32", "kv_v": "f16"}, {"kv_k": "f16", "flash_attention": False}],
    ids=["q8_0", "f16", "f32 and f16", "no flash attention"],
)
@pytest.mark.parametrize("further", [0, 40])
@pytest.mark.parametrize("name", MADE)
def test_a_restored_cache_gives_the_rows_of_a_text_that_was_read(
    name: str, further: int, settings: dict[str, Any], made: Callable[[str], Path]
) -> None:
    weights = LlamaWeights(made(name))
    asked = LlamaSettings(n_ctx=240, n_threads=1, max_rows=4, **settings)
    pool, _ = open_llama(weights, asked, file=name, cache_dir=None)
    model = lone_text(pool)
    try:
        text = np.random.default_rng(0).integers(256, model.n_vocab - 1, 240).tolist()

        def row(place: int) -> bytes:
            found = model.decode(Tree.sequence(text[place : place + 1])).tobytes()
            model.keep([0])
            return found

        model.prefill(text[:70])
        wanted = [row(70 + n) for n in range(further + 1)]
        end = model.n_past
        # The library takes 64 rows and more by tiles.
        model.prefill(text[end : end + 80])
        after = row(end + 80)
        model.rollback(end)
        state = model.save()
        model.rollback(0)
        model.prefill(text[100:110])
        model.restore(state)
        assert model.n_past == end
        model.prefill(text[end : end + 80])
        assert row(end + 80) == after
        model.rollback(70)
        assert model.n_past == 70
        assert [row(70 + n) for n in range(further + 1)] == wanted
    finally:
        model.close()
        weights.close()


@pytest.mark.parametrize("cache", ["q8_0", "f16"])
def test_a_conversation_saved_without_what_lies_outside_of_windows_is_read_again(
    cache: str, made: Callable[[str], Path], probe_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told beforehand where that may give other bits; the identity says so from then on."""
    given: dict[str, Any] = {"engine": "llama", "n_ctx": 320, "max_rows": 4, "n_threads": 1, "cache_dir": probe_cache}
    answers = []
    with edge_spec.load(made("gemma3"), speculation="off", kv_k=cache, **given) as model:
        for is_old in (False, True):
            session = model.chat(seed=1, max_tokens=20, ignore_eos=True)
            session.send("One day " * 6).read()
            with monkeypatch.context() as older:
                if is_old:
                    # As before versions wrote parts.
                    older.setattr(LibraryContext, "n_window", 0)
                session.save(tmp_path / "said.chat")
            session.close()
            identity = "rounding" if is_old and cache == "f16" else "bitwise"
            notices: list[str] = []
            loaded = edge_spec.ChatSession.load(model, tmp_path / "said.chat", on_notice=notices.append)
            reply = loaded.send("And then?")
            next(reply)
            assert any("read again" in notice for notice in notices) == (identity == "rounding")
            assert reply.identity == identity
            answers.append(reply.read())
            loaded.save(tmp_path / "said.chat")
            loaded.close()
            reply = edge_spec.ChatSession.load(model, tmp_path / "said.chat").send("And then?")
            assert reply.identity == identity
            reply.close()
    assert cache == "f16" or answers[0] == answers[1]


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
