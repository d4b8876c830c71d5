"""Laws of several texts at once on real models: token for token what each is alone, on every engine."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edge_spec
from edge_spec.engines.onnx.kernels import available
from edge_spec.errors import Closed, ContextFull, PromptTooLong
from edge_spec.model import TextModel
from edge_spec.speculation.language_model import Logits
from edge_spec.speculation.texts import TextsModel
from edge_spec.speculation.tree import Tree

needs_kernels = pytest.mark.skipif(available() is not None, reason="the kernels were not built")

PROMPTS = ["Tell me a story about a dog.", "Why is the sky blue?", "Name three animals.", "What is a boat?", "Hi!"]
NAMES = '{"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}'
WISHES: list[dict[str, Any]] = [
    {"max_tokens": 60},
    {"max_tokens": 40, "temperature": 0},
    {"max_tokens": 60, "stop": ["the", "."]},
    {"max_tokens": 60, "json_schema": NAMES},
    {"max_tokens": 30, "mirostat": 2, "ignore_eos": True},
    {"max_tokens": 40, "repeat_penalty": 1.3, "top_k": 0, "temperature": 1.5},
]


@pytest.fixture(scope="module", params=["f32", "f16"])
def onnx(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TextModel]:
    if available() is not None:
        pytest.skip("the kernels were not built")
    folder = tmp_path_factory.mktemp("cache")
    kind = request.param
    with edge_spec.load("demo", engine="onnx", n_ctx=400, cache_dir=folder, kv_k=kind, kv_v=kind) as model:
        yield model


def alone(model: TextModel, prompt: str, **asked: Any) -> tuple[Any, ...]:
    reply: Any = model.generate(prompt, **asked)
    text = reply.read()
    return reply.token_ids, text, reply.finish_reason


def outcomes(replies: Any) -> list[tuple[Any, ...]]:
    replies.read()
    found = (replies[index] for index in range(len(replies)))
    return [(each.token_ids, each.text, each.finish_reason) for each in found]


@needs_kernels
@pytest.mark.parametrize("asked", WISHES, ids=lambda asked: " ".join(map(str, asked)))
def test_several_answers_are_the_attempts_of_one_seed(onnx: TextModel, asked: dict[str, Any]) -> None:
    several = outcomes(onnx.generate(PROMPTS[0], n=5, seed=4, **asked))
    assert several == [alone(onnx, PROMPTS[0], seed=4, attempt=n, **asked) for n in range(5)]


@needs_kernels
@pytest.mark.parametrize("asked", WISHES[:4], ids=lambda asked: " ".join(map(str, asked)))
def test_several_prompts_are_answered_as_each_alone(onnx: TextModel, asked: dict[str, Any]) -> None:
    prompts = [*PROMPTS, "Tell me about cats. " * 12, *PROMPTS[:2]] * 3
    several = outcomes(onnx.generate_many(prompts, seed=9, **asked))
    assert several == [alone(onnx, prompt, seed=9, **asked) for prompt in prompts]


@needs_kernels
def test_texts_that_fill_the_context_end_there(onnx: TextModel) -> None:
    prompts = ["cat " * 150, "dog " * 250, "bird " * 5000, "Hi!"]
    replies = onnx.generate_many(prompts, seed=1, raw=True, ignore_eos=True)
    found = outcomes(replies)
    assert [reason for *_, reason in found] == ["context", "context", "error", "context"]
    assert isinstance(replies[2].error, PromptTooLong)
    for index in (0, 1, 3):
        assert found[index] == alone(onnx, prompts[index], seed=1, raw=True, ignore_eos=True)


@needs_kernels
def test_rows_of_several_texts_are_those_of_each_alone(onnx: TextModel) -> None:
    """Random texts that advance in random company, bit for bit; slots are used again."""
    model = onnx.followed["target"].model
    assert isinstance(model, TextsModel)
    chance = random.Random(1)
    texts = model.texts(4, 200)
    for _ in range(2):
        wanted: list[list[int]] = []
        for slot in range(4):
            n = chance.randrange(2, 180)
            wanted.append([chance.randrange(300, model.n_vocab - 1) for _ in range(n + chance.randrange(1, 12))])
            texts.rollback(slot, 0)
            texts.read(slot, wanted[slot][:n])
            wanted[slot] = [n, *wanted[slot]]
        rows: list[list[Logits]] = [[] for _ in range(4)]
        while True:
            slots = [slot for slot in range(4) if wanted[slot][0] + len(rows[slot]) < len(wanted[slot]) - 1]
            if not slots:
                break
            some = chance.sample(slots, chance.randrange(1, len(slots) + 1))
            found = texts.decode({slot: wanted[slot][1 + wanted[slot][0] + len(rows[slot])] for slot in some})
            for slot, row in zip(some, found, strict=True):
                rows[slot].append(row.copy())
        for slot in range(4):
            n, *tokens = wanted[slot]
            model.rollback(0)
            model.prefill(tokens[:n])
            for token, row in zip(tokens[n:], rows[slot], strict=True):
                assert np.array_equal(model.decode(Tree.sequence([token]))[0], row)
                model.keep([0])
    model.rollback(0)
    texts.close()
    with pytest.raises(Closed):
        texts.decode({0: 1})


@needs_kernels
def test_a_copied_text_continues_like_its_source(onnx: TextModel) -> None:
    model = onnx.followed["target"].model
    assert isinstance(model, TextsModel)
    texts = model.texts(2, 100)
    texts.read(1, range(300, 350))
    texts.copy(1, 0, 37)
    texts.rollback(1, 37)
    both = texts.decode({0: 400, 1: 400})
    assert np.array_equal(both[0], both[1])
    with pytest.raises(ContextFull):
        texts.read(0, range(300, 363))
    with pytest.raises(ValueError, match="of a text of 38"):
        texts.rollback(0, 39)
    texts.close()


@needs_kernels
def test_the_ledger_says_what_their_caches_take(onnx: TextModel) -> None:
    model = onnx.followed["target"].model
    assert isinstance(model, TextsModel)
    replies = onnx.generate(PROMPTS[0], n=4, seed=1, max_tokens=50)
    next(replies)
    line = next(line for line in onnx.ledger if line.owner == "texts")
    assert line.predicted_bytes == model.texts_bytes(4, len(replies[0].prompt) + 50)
    own = next(line for line in onnx.ledger if (line.owner, line.name) == ("target", "KV cache"))
    assert model.texts_bytes(1, onnx.n_ctx) < own.predicted_bytes < 2 * model.texts_bytes(1, onnx.n_ctx)
    onnx.ledger.check_integrity()
    replies.close()
    assert not [line for line in onnx.ledger if line.owner == "texts"]


@pytest.mark.parametrize("engine", ["llama", "onnx"])
def test_where_texts_come_one_after_the_other_they_are_the_same(engine: str, tmp_path: Path) -> None:
    """llama.cpp, and a budget with no room for more caches."""
    with edge_spec.load("demo", engine=engine, n_ctx=256, cache_dir=tmp_path) as model:
        if engine == "onnx":
            model.ledger.claim("test", "the rest", (model.ledger.left_bytes or 0) - 1000)
        several = outcomes(model.generate_many(PROMPTS, seed=2, max_tokens=20))
        assert several == [alone(model, prompt, seed=2, max_tokens=20) for prompt in PROMPTS]
        answers = outcomes(model.generate(PROMPTS[1], n=2, seed=2, max_tokens=20))
        assert answers == [alone(model, PROMPTS[1], seed=2, attempt=n, max_tokens=20) for n in range(2)]


@needs_kernels
def test_a_real_model_writes_several_texts_as_each_alone(tmp_path: Path) -> None:
    with edge_spec.load("smollm2", engine="onnx", speculation="off", n_ctx=256, cache_dir=tmp_path) as model:
        several = outcomes(model.generate_many(PROMPTS, seed=2, max_tokens=16))
        assert several == [alone(model, prompt, seed=2, max_tokens=16) for prompt in PROMPTS]
        answers = outcomes(model.generate(PROMPTS[1], n=3, seed=2, max_tokens=16))
        assert answers == [alone(model, PROMPTS[1], seed=2, attempt=n, max_tokens=16) for n in range(3)]
