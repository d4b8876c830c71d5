"""The laws end to end on a real model: SmolLM2-135M-Instruct as it is published, with the drafters that it has here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from modes_agree import check_modes_agree, questions

import edge_spec
from edge_spec import ChatSession, TextModel
from edge_spec.errors import BudgetExceeded
from edge_spec.llama_cpp.quantize import quantize
from edge_spec.loading import plan, possible_modes
from edge_spec.models import inspect, resolve

pytestmark = pytest.mark.long

PROMPTS = ("Give me three tips for sleeping better.", "Repeat after me: red, green, blue, red, green, blue, red,")
SAMPLERS = ({"temperature": 0.0}, {"temperature": 0.8, "seed": 5})
ENGINES = ("onnx", "llama")
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "maximum": 99}},
    "required": ["name", "age"],
}
CONTEXT = 256


def opened(cache: Path, **settings: Any) -> TextModel:
    return edge_spec.load("smollm2", **{"n_ctx": CONTEXT, "cache_dir": cache, **settings})


@pytest.fixture(scope="module", params=ENGINES)
def auto(request: pytest.FixtureRequest, probe_cache: Path) -> Iterator[TextModel]:
    """The model as users load it, on each engine."""
    with opened(probe_cache, engine=request.param) as model:
        yield model


@pytest.fixture(scope="module")
def written(probe_cache: Path) -> dict[tuple[str, str], list[list[int]]]:
    """What it writes by engine and mode: the same prompts, and a conversation."""
    found = {}
    for engine in ENGINES:
        for mode in possible_modes("smollm2", engine=engine):
            with opened(probe_cache, engine=engine, speculation=mode) as model:
                found[engine, mode] = [
                    *(tokens(model, prompt, **sampler) for prompt in PROMPTS for sampler in SAMPLERS),
                    *conversation(model),
                ]
    return found


def tokens(model: TextModel, prompt: str, **settings: Any) -> list[int]:
    reply = model.generate(prompt, max_tokens=28, **settings)
    reply.read()
    return reply.token_ids


def conversation(model: TextModel) -> list[list[int]]:
    """Two turns and another draw of the second one."""
    chat = model.chat("Answer briefly.", seed=3, max_tokens=16, temperature=0.8)
    found = []
    for ask in (lambda: chat.send("Who are you?"), lambda: chat.send("What do you like to eat?"), chat.retry):
        reply = ask()
        reply.read()
        found.append(reply.token_ids)
    chat.close()
    return found


@pytest.mark.parametrize(
    ("engine", "mode"),
    [(engine, mode) for engine in ENGINES for mode in possible_modes("smollm2", engine=engine) if mode != "off"],
)
def test_every_mode_writes_what_the_model_writes_alone(
    written: dict[tuple[str, str], list[list[int]]], engine: str, mode: str
) -> None:
    assert written[engine, mode] == written[engine, "off"]
    assert all(len(reply) > 3 for reply in written[engine, "off"])


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K_M"])
def test_its_head_drafts_for_it_in_other_types_of_weights(kind: str, tmp_path: Path, probe_cache: Path) -> None:
    """Without being asked to, and without a change of the text."""
    other, engine = tmp_path / f"{kind}.gguf", "onnx"
    quantize(inspect(resolve("smollm2")), other, kind, requantize=True, n_threads=1)
    modes = possible_modes(other, engine=engine)
    assert {"sequence", "tree"} <= set(modes)
    asked, look = questions(PROMPTS, (0, 0.8), max_tokens=28), lambda mode, model: None
    replies = check_modes_agree(modes, asked, look, other, engine=engine, cache_dir=probe_cache)
    done = [reply.statistics for reply in replies["sequence"]]
    assert sum(each.accepted for each in done) > 0.2 * sum(each.rounds for each in done)


@pytest.mark.parametrize("engine", ENGINES)
def test_it_writes_several_texts_as_each_alone(engine: str, probe_cache: Path) -> None:
    prompts = [*PROMPTS, "Why is the sky blue?", "Name three animals.", "Hi!"]
    asked: dict[str, Any] = {"seed": 2, "max_tokens": 16}
    with opened(probe_cache, engine=engine, speculation="off") as model:
        assert model.followed["target"].model.pool.max_paths > 1
        several = model.generate_many(prompts, **asked)
        several.read()
        found = [outcome(several[place]) for place in range(len(prompts))]
        assert found == [outcome(model.generate(prompt, **asked)) for prompt in prompts]
        answers = model.generate(prompts[1], n=3, **asked)
        answers.read()
        found = [outcome(answers[place]) for place in range(3)]
        assert found == [outcome(model.generate(prompts[1], attempt=n, **asked)) for n in range(3)]


def outcome(reply: Any) -> tuple[list[int], str, str | None]:
    text = reply.read()
    return reply.token_ids, text, reply.finish_reason


def test_it_answers_in_words(written: dict[tuple[str, str], list[list[int]]], auto: TextModel) -> None:
    text = auto.prompts.detokenize(written["onnx", "off"][0])
    assert "sleep" in text.lower()


def test_a_saved_conversation_continues_bit_for_bit(auto: TextModel, tmp_path: Path) -> None:
    chat = auto.chat(seed=8, max_tokens=20)
    chat.send("Tell me about the sea.").read()
    chat.save(tmp_path / "sea.chat")
    whole = chat.send("And the fish?").read()
    chat.close()
    assert ChatSession.load(auto, tmp_path / "sea.chat").send("And the fish?").read() == whole


def test_structured_output_is_valid(auto: TextModel) -> None:
    for seed in range(3):
        text = auto.generate("Invent a person.", json_schema=SCHEMA, seed=seed, max_tokens=60).read()
        assert list(jsonschema.Draft202012Validator(SCHEMA).iter_errors(json.loads(text))) == []


def test_several_answers_are_the_single_ones(auto: TextModel) -> None:
    prompt = "Name a color."
    together = auto.generate(prompt, n=3, seed=6, max_tokens=16).read()
    assert together == [auto.generate(prompt, seed=6, attempt=i, max_tokens=16).read() for i in range(3)]


def test_an_engine_without_its_head_is_not_compared_in_a_plan(probe_cache: Path) -> None:
    found = plan("smollm2", memory="221MiB", held_bytes=0, speculation="sequence", cache_dir=probe_cache)
    assert found.chosen.mode.name == "sequence"
    assert all(each.candidate.stage == "tables" for each in found.alternatives)


def test_the_options_that_bring_the_drafter_are_told(probe_cache: Path) -> None:
    asked: dict[str, Any] = {"held_bytes": 60 << 20, "cache_dir": probe_cache}
    least = plan("smollm2", memory="1GiB", **asked).thresholds["drafter"]
    found = plan("smollm2", memory=least, **asked)
    (told,) = found.alternatives
    assert (found.chosen.stage, told.candidate.stage) == ("tables", "drafter")
    assert plan("smollm2", memory=least, **asked, **told.arguments).chosen == told.candidate


@pytest.mark.parametrize("engine", ENGINES)
def test_it_holds_what_its_plan_said(engine: str, probe_cache: Path) -> None:
    least = plan("smollm2", engine=engine, n_ctx=256, cache_dir=probe_cache).thresholds["fits"]
    with opened(probe_cache, engine=engine, n_ctx=256, memory=int(1.5 * least)) as model:
        model.generate(PROMPTS[0], max_tokens=8).read()
        assert model.ledger.held_bytes <= 1.5 * least
    with pytest.raises(BudgetExceeded):
        opened(probe_cache, engine=engine, n_ctx=256, memory=least // 2)
