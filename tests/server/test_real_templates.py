"""The chat templates and two vocabularies of llama.cpp's source package: what the laws of small ones say, of real ones.

``EDGE_SPEC_VOCABULARIES`` names the folder that holds ``ggml-vocab-*.gguf`` and ``templates``
(``vendor/llama.cpp/models`` of the unpacked ``llama_cpp_python`` sdist).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edge_spec.generation.prompts import PromptBuilder
from edge_spec.generation.thoughts import THOUGHTS, marks_of
from edge_spec.generation.tools.answers import AnswerParser, MergedMessage
from edge_spec.generation.tools.chat_prompts import chat_prompt
from edge_spec.generation.tools.functions import Tool
from edge_spec.generation.tools.grammar import calls_grammar, schema_of
from edge_spec.generation.tools.syntax import FORMS, HERMES, LLAMA, CallSyntax, syntax_of
from edge_spec.llama_cpp.weights import LlamaWeights
from edge_spec.sampling.guidance import GuidedGrammar, GuidedVocabulary

FOLDER = Path(os.environ.get("EDGE_SPEC_VOCABULARIES", ""))
IS_THERE = bool(os.environ.get("EDGE_SPEC_VOCABULARIES"))
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not IS_THERE, reason="EDGE_SPEC_VOCABULARIES names no folder")]
TEMPLATES = {path.stem: path for path in sorted(FOLDER.glob("templates/*.jinja"))} if IS_THERE else {}

HARMONY, GEMMA4, TAGGED, _, LFM2, MISTRAL, _ = FORMS
KNOWN = {
    "Bielik-11B-v3.0-Instruct": HERMES,
    "LFM2-8B-A1B": LFM2,
    "LFM2.5-8B-A1B": LFM2,
    "LFM2.5-Instruct": LFM2,
    "MiMo-VL": HERMES,
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": TAGGED,
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": HERMES,
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": HERMES,
    "Qwen-QwQ-32B": HERMES,
    "Qwen-Qwen2.5-7B-Instruct": HERMES,
    "Qwen-Qwen3-0.6B": HERMES,
    "Qwen3-Coder": TAGGED,
    "Qwen3.5-4B": TAGGED,
    "Reka-Edge": HERMES,
    "StepFun3.5-Flash": TAGGED,
    "google-gemma-4-31B-it": GEMMA4,
    "google-gemma-4-31B-it-interleaved": GEMMA4,
    "ibm-granite-granite-4.0": HERMES,
    "ibm-granite-granite-4.1": HERMES,
    "meta-llama-Llama-3.1-8B-Instruct": LLAMA,
    "meta-llama-Llama-3.2-3B-Instruct": LLAMA,
    "meta-llama-Llama-3.3-70B-Instruct": LLAMA,
    "mistralai-Ministral-3-14B-Reasoning-2512": MISTRAL,
    "openai-gpt-oss-120b": HARMONY,
    "unsloth-mistral-Devstral-Small-2507": MISTRAL,
}
WANTS_MORE = {"fireworks-ai-llama-3-firefunction-v2"}
"""Asks for a list of functions beside that of tools."""

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
}
FUNCTION = Tool(name="get_weather", parameters=PARAMETERS)
TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "Now.", "parameters": PARAMETERS}}]
SYSTEM = {"role": "system", "content": "Be brief."}
QUESTION = {"role": "user", "content": "Weather?"}
ENDS = ("<|eot_id|>", "<|im_end|>", "<turn|>", "<|call|>", "</s>", "<|end_of_text|>", "<|tool_response>", "\n<sep>")
ENDS += ("<|end|>", "<|eom_id|>")


class Names:
    """What a template asks of a tokenizer."""

    bos, eos = 0, 1
    control_names = ("<s>", "</s>")

    def name(self, token: int) -> str:
        return self.control_names[token]


def calls(*cities: str) -> dict[str, Any]:
    made = []
    for city in cities:
        function = {"name": "get_weather", "arguments": {"city": city, "days": 3}}
        made.append({"id": f"call_{city}", "type": "function", "function": function})
    return {"role": "assistant", "content": "", "tool_calls": made}


def result(city: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"call_{city}", "name": "get_weather", "content": f"rain in {city}"}


def written(template: str, messages: list[dict[str, Any]], **options: Any) -> tuple[str, CallSyntax]:
    tokenizer: Any = Names()
    return chat_prompt(PromptBuilder(tokenizer, template, 2), messages, TOOLS, options)


def source(name: str) -> str:
    return TEMPLATES[name].read_text("utf-8")


def test_each_is_known_by_its_template() -> None:
    assert {name: form for name in TEMPLATES if (form := syntax_of(source(name))) is not None} == KNOWN
    shown = {name: marks_of(source(name)) for name in TEMPLATES}
    assert {name for name, marks in shown.items() if marks is THOUGHTS[1]} == {
        "google-gemma-4-31B-it",
        "google-gemma-4-31B-it-interleaved",
    }
    assert [name for name, marks in shown.items() if marks is THOUGHTS[2]] == [
        "mistralai-Ministral-3-14B-Reasoning-2512"
    ]
    assert [name for name, marks in shown.items() if marks is THOUGHTS[3]] == ["openai-gpt-oss-120b"]


@pytest.mark.parametrize("name", TEMPLATES)
def test_everything_said_stands_in_the_prompt(name: str) -> None:
    if name in WANTS_MORE:
        pytest.skip("it asks for more")
    messages = [SYSTEM, QUESTION, calls("Rome", "Oslo"), result("Rome"), result("Oslo")]
    text, _ = written(source(name), messages)
    assert all(text.count(part) >= 1 for part in ("Weather?", "Be brief.", "Now."))
    places = [text.index(f"rain in {city}") for city in ("Rome", "Oslo")]
    assert places == sorted(places)
    assert text.index("Weather?") < text.index("Rome") < places[0]
    assert text.index("Oslo") < places[1]


@pytest.mark.parametrize("name", KNOWN)
def test_what_it_writes_of_calls_is_read(name: str) -> None:
    cities = ("Rome", "Oslo") if KNOWN[name].takes_many else ("Rome",)
    text, form = written(source(name), [QUESTION, calls(*cities)])
    answer = text[text.rindex("Weather?") :]
    answer = answer[answer.index(form.mark or form.opening) :]
    answer = min((answer.partition(end)[0] for end in ENDS), key=len)
    parser = AnswerParser(marks_of(source(name)).between, form, {"get_weather": schema_of(FUNCTION)})
    message = MergedMessage([delta for char in answer for delta in parser.push(char)] + parser.finish()).message()
    read = [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in message["tool_calls"]]
    assert read == [("get_weather", {"city": city, "days": 3}) for city in cities]


VOCABULARIES = {"gemma-4": "google-gemma-4-31B-it", "qwen35": "Qwen3.5-4B"}


@pytest.fixture(scope="module", params=VOCABULARIES)
def vocabulary(request: Any) -> Iterator[tuple[LlamaWeights, str]]:
    weights = LlamaWeights(FOLDER / f"ggml-vocab-{request.param}.gguf", vocab_only=True)
    yield weights, source(VOCABULARIES[request.param])
    weights.close()


ENDS_OF = {"gemma-4": {"<eos>", "<turn|>", "<|tool_response>"}, "qwen35": {"<|endoftext|>", "<|im_end|>", "</s>"}}
"""llama.cpp ends replies at the word ``</s>``, too, which Qwen's tokenizer never writes."""


def test_replies_end_at_the_ends_of_turns_and_special_tokens_that_somebody_names_are_text(
    vocabulary: tuple[LlamaWeights, str],
) -> None:
    weights, template = vocabulary
    prompts = PromptBuilder(weights, template, weights.n_vocab)
    special = {name: weights.tokenize(name, add_special=False) for name in weights.control_names}
    assert all(len(tokens) == 1 for tokens in special.values())
    is_gemma = "<|tool_call>" in special
    ends = {weights.name(token) for token in range(weights.n_vocab) if weights.ends(token)}
    assert ends == ENDS_OF["gemma-4" if is_gemma else "qwen35"]
    assert not is_gemma or special.keys() >= {'<|"|>', "<|channel>", "<channel|>", "<tool_response|>", "<|turn>"}

    def counted(said: str) -> dict[str, int]:
        function = {"name": "get_weather", "arguments": {"city": said, "days": 3}}
        called = {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "function": function}]}
        messages = [SYSTEM, {"role": "user", "content": said}, called, {**result("1"), "content": said}]
        text, _ = chat_prompt(prompts, messages, TOOLS, {})
        tokens = prompts.tokenize_rendered(text)
        assert said in text
        return {name: tokens.count(token) for name, (token,) in special.items()}

    assert counted(" ".join(special)) == counted("nothing")


def test_a_call_in_real_tokens_is_allowed_and_read_however_it_is_cut_into_tokens(
    vocabulary: tuple[LlamaWeights, str],
) -> None:
    weights, template = vocabulary
    prompts = PromptBuilder(weights, template, weights.n_vocab)
    text, form = chat_prompt(prompts, [QUESTION], TOOLS, {"enable_thinking": True})
    opening = prompts.opening(prompts.tokenize_rendered(text))
    # In the vocabulary for tests Qwen's own marks are not tokens.
    assert opening == ("<think>\n" if form is TAGGED else "")
    marks = marks_of(template)
    arguments = {GEMMA4: '{city:<|"|>Rome "é"<|"|>,days:3}<tool_call|>'}.get(
        form, 'Rome "é"\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>'
    )
    lead = "<parameter=city>\n" if form is TAGGED else ""
    answer = f"{form.opening}get_weather{form.middle}{lead}{arguments}"
    grammar = calls_grammar([FUNCTION], form, required=True, several=True, may_think=True, marks=marks)
    guided = GuidedGrammar(GuidedVocabulary(weights), grammar)
    for thought in ("", f"{marks.opening}Hm.{marks.closing}\n"):
        tokens = weights.tokenize(thought + answer, add_special=False)
        state: Any = guided.start()
        for token in tokens:
            assert state.allowed([token])[0], weights.token_bytes(token)
            state = state.after(token)
        end = next(token for token in range(weights.n_vocab) if weights.ends(token))
        assert state.allowed([end])[0]
        parser = AnswerParser("", form, {"get_weather": schema_of(FUNCTION)})
        pieces = [weights.token_bytes(token) for token in tokens]
        assert b"".join(pieces).decode() == thought + answer
        # A character may be cut into tokens, which the stream of a reply puts together.
        deltas = [delta for piece in _characters(pieces) for delta in parser.push(piece)] + parser.finish()
        (call,) = MergedMessage(deltas).message()["tool_calls"]
        assert json.loads(call["function"]["arguments"]) == {"city": 'Rome "é"', "days": 3}


def _characters(pieces: list[bytes]) -> Iterator[str]:
    held = b""
    for piece in pieces:
        held += piece
        try:
            yield held.decode()
        except UnicodeDecodeError:
            continue
        held = b""
