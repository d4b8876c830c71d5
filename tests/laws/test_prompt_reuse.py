"""Laws of prompts that begin like earlier texts: fewer tokens are read, and not a bit of the reply changes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import edge_spec
from edge_spec.model import TextModel

pytestmark = pytest.mark.long

ENGINES = ["llama", "onnx"]
STORY = "Once upon a time there was a dog who lived in a small house by the sea with a friendly old man. "


@pytest.fixture(scope="module")
def load_demo(probe_cache: Path) -> Iterator[Callable[[str], TextModel]]:
    loaded: dict[str, TextModel] = {}

    def load(engine: str) -> TextModel:
        if engine not in loaded:
            given: dict[str, Any] = {"n_threads": 1, "cache_dir": probe_cache, "speculation": "sequence"}
            loaded[engine] = edge_spec.load("demo", engine=engine, **given)
        return loaded[engine]

    yield load
    for model in loaded.values():
        model.close()


def told(model: TextModel, prompt: list[int], *, reuse: bool, seed: int) -> tuple[list[Any], int]:
    """The tokens of a reply with the exact likelihood of each, and how much of the prompt was reused."""
    reply = model.generate(tokens=prompt, reuse=reuse, seed=seed, max_tokens=8, logprobs=0)
    return [(event.id, event.logprob) for event in reply.events()], reply.n_reused


@pytest.fixture(params=[1, 64], ids=["any place", "whole chunks"])
def step(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.mark.parametrize("engine", ENGINES)
def test_not_a_bit_changes_whatever_came_before(
    load_demo: Callable[[str], TextModel], engine: str, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_demo(engine)
    target: Any = model.followed["target"].model
    assert target.capabilities.reuse_step == 1, "both engines' cells are alike on the demo family"
    cells = target.pool
    monkeypatch.setattr(cells, "capabilities", replace(cells.capabilities, reuse_step=step))
    monkeypatch.setattr(cells, "settings", replace(cells.settings, prefill_chunk=64))
    chance = random.Random(step)
    base = model.tokenize(STORY * 12)
    texts = [base[: 40 + 37 * n] for n in range(6)]
    reused = 0
    for turn in range(12):
        prompt = list(chance.choice(texts))
        if chance.random() < 0.3:
            prompt += chance.choices(base, k=chance.randrange(1, 40))
        if turn % 7 == 3:
            # Another conversation, and a reply that keeps nothing, come in between.
            model.chat(seed=1, max_tokens=4).send("Hello").read()
            model.generate("Hello", seed=1, max_tokens=2).read()
        fresh, none = told(model, prompt, reuse=False, seed=turn)
        again, n = told(model, prompt, reuse=True, seed=turn)
        assert (again, none) == (fresh, 0)
        assert n <= len(prompt) - 1 and n % step == 0
        reused += n
        # What a client sends next: the prompt, the reply, and more.
        texts.append([*prompt, *(token for token, _ in fresh if token is not None), *chance.choices(base, k=5)][:500])
    assert reused > 250


@pytest.mark.parametrize("engine", ENGINES)
def test_conversations_of_a_client_without_a_state_are_read_once(
    load_demo: Callable[[str], TextModel], engine: str
) -> None:
    """Two of them take turns; each prompt holds the one before and its reply."""
    model = load_demo(engine)
    prompts = {name: model.tokenize(f"{name}: {STORY * 4}") for name in ("Ann", "Bob")}
    for turn in range(4):
        for name, prompt in prompts.items():
            reply = model.generate(tokens=prompt, reuse=True, seed=turn, max_tokens=12)
            reply.read()
            # Before the first turn another test may have left a text; of the own last prompt all is reused.
            assert turn == 0 or reply.n_reused >= len(prompt) - 4 - 1
            prompts[name] = [*prompt, *reply.token_ids, *prompt[:3]]


def check_a_common_beginning_is_copied(model: TextModel) -> None:
    system = model.tokenize("A new beginning. " + STORY * 4)
    first = [*system, *model.tokenize(STORY * 6)]
    second = [*system, *model.tokenize("Something else.")]
    model.generate(tokens=first, reuse=True, seed=1, max_tokens=4).read()
    prompts = {len(system): second, len(first) - 1: first, len(second) - 1: second}
    found = [told(model, prompt, reuse=True, seed=1) for prompt in prompts.values()]
    for (least, prompt), (again, n_reused) in zip(prompts.items(), found, strict=True):
        assert n_reused >= least
        assert again == told(model, prompt, reuse=False, seed=1)[0]


def test_a_common_beginning_is_copied_and_stays_with_its_text(load_demo: Callable[[str], TextModel]) -> None:
    check_a_common_beginning_is_copied(load_demo("llama"))


def test_a_common_beginning_is_copied_where_an_engine_holds_one_text(probe_cache: Path) -> None:
    with edge_spec.load("demo", engine="llama", n_threads=1, cache_dir=probe_cache, speculation="tree") as model:
        assert model.prefix_cache.pool.capabilities.reuse_step == 1
        check_a_common_beginning_is_copied(model)


def test_what_is_evicted_is_read_again(probe_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # With these caches llama.cpp holds one text.
    with edge_spec.load("demo", engine="llama", n_threads=1, cache_dir=probe_cache, kv_k="f16") as model:
        monkeypatch.setattr(model.prefix_cache, "limit_bytes", 0)
        prompts = [model.tokenize(f"{name} {STORY * 3}") for name in ("Zoe", "Yan")]
        for _ in range(2):
            for prompt in prompts:
                fresh, _ = told(model, prompt, reuse=False, seed=3)
                again, n = told(model, prompt, reuse=True, seed=3)
                assert again == fresh
                assert n == 0
