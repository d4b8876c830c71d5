"""Laws of answers over the wire, asked by OpenAI's own client."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState

import edge_spec
from edge_spec.controller.degradation import Degradation

pytestmark = pytest.mark.long

DOG = "Tell me a story about a dog."
SETTINGS = [
    {"seed": 7},
    {"seed": 8, "temperature": 0},
    {"seed": 9, "temperature": 1.4, "top_p": 0.8, "presence_penalty": 0.5},
    {"seed": 10, "logit_bias": {"300": -100, "301": 3.5}, "stop": ["little", "\n\n"]},
]


@pytest.mark.parametrize("engine", ["llama", "onnx"])
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda each: f"seed {each['seed']}")
def test_the_text_is_that_of_generate(serve: Callable[..., Any], engine: str, settings: dict[str, Any]) -> None:
    served = serve(engine)
    own = {**settings, "logit_bias": {int(token): x for token, x in settings.get("logit_bias", {}).items()}}
    reply = served.model.generate(DOG, max_tokens=24, **own)
    text = reply.read()
    answer = served.chat(**settings)
    assert answer.choices[0].message.content == text
    assert answer.choices[0].finish_reason == {"length": "length"}.get(reply.finish_reason, "stop")
    assert answer.system_fingerprint == served.model.profile.name
    chunks = list(served.chat(**settings, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text
    assert chunks[-1].choices[0].finish_reason == answer.choices[0].finish_reason


@pytest.mark.parametrize("engine", ["llama", "onnx"])
def test_a_continuation_is_that_of_generate(serve: Callable[..., Any], engine: str) -> None:
    served = serve(engine)
    prompts = ["Once upon a time", served.model.tokenize("def area(")]
    for prompt in prompts:
        given = {"prompt": prompt} if isinstance(prompt, str) else {"tokens": prompt}
        text = served.model.generate(**given, raw=True, max_tokens=16, seed=3).read()
        answer = served.client.completions.create(model="demo", prompt=prompt, max_tokens=16, seed=3)
        assert answer.choices[0].text == text
    both = served.client.completions.create(model="demo", prompt=["Once", "The end"], max_tokens=5, seed=3, n=2)
    assert [choice.index for choice in both.choices] == [0, 1, 2, 3]
    alone = served.client.completions.create(model="demo", prompt="The end", max_tokens=5, seed=3)
    assert both.choices[2].text == alone.choices[0].text


@pytest.mark.parametrize("engine", ["llama", "onnx"])
def test_several_answers_are_those_of_generate_and_of_retries(serve: Callable[..., Any], engine: str) -> None:
    served = serve(engine)
    settings = served.model.sampler_settings(seed=7)
    tokens = served.model.prompt_of(DOG)
    alone = [
        served.model.reply(tokens, replace(settings, attempt=attempt), max_tokens=12).read() for attempt in range(3)
    ]
    assert served.model.generate(DOG, n=3, seed=7, max_tokens=12).read() == alone
    answer = served.chat(n=3, max_tokens=12)
    assert [choice.message.content for choice in answer.choices] == alone
    streamed = ["", "", ""]
    order = []
    for chunk in served.chat(n=3, max_tokens=12, stream=True):
        order.append(chunk.choices[0].index)
        streamed[order[-1]] += chunk.choices[0].delta.content or ""
    assert streamed == alone
    # One decode advances several texts: they stream side by side.
    assert order != sorted(order)


@pytest.mark.parametrize("engine", ["llama", "onnx"])
def test_several_answers_tell_of_their_tokens(serve: Callable[..., Any], engine: str) -> None:
    served = serve(engine)
    asked = {"max_tokens": 8, "logprobs": True, "top_logprobs": 2, "extra_body": {"token_events": True}}
    several = served.chat(n=2, **asked)
    first = served.chat(**asked).choices[0]
    assert several.choices[0].logprobs == first.logprobs
    for choice in several.choices:
        told = choice.model_extra["token_events"]
        assert "".join(event["text"] for event in told) == choice.message.content
        assert len(told) == len(choice.logprobs.content) == 8


def test_usage_adds_up(served: Any) -> None:
    prompt = len(served.model.prompt_of(DOG))
    usage = served.chat().usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (prompt, 24)
    assert usage.total_tokens == prompt + 24
    assert 0 <= usage.accepted_tokens <= usage.drafted_tokens
    assert usage.accepted_tokens + usage.rounds == 24
    *chunks, last = served.chat(stream=True, stream_options={"include_usage": True})
    assert all(chunk.usage is None for chunk in chunks)
    assert (last.choices, last.usage.completion_tokens) == ([], 24)
    assert served.chat(extra_body={"speculation": "off"}).usage.drafted_tokens == 0


def test_log_probabilities_are_those_of_the_model(served: Any) -> None:
    answer = served.chat(logprobs=True, top_logprobs=3, temperature=0)
    tokens = answer.choices[0].logprobs.content
    assert b"".join(bytes(each.bytes) for each in tokens).decode() == answer.choices[0].message.content
    for each in tokens:
        # Greedy: what was written is the likeliest.
        assert each.top_logprobs[0].logprob == each.logprob <= 0
        assert [top.logprob for top in each.top_logprobs] == sorted(
            (t.logprob for t in each.top_logprobs), reverse=True
        )
    streamed = [
        each
        for chunk in served.chat(logprobs=True, top_logprobs=3, temperature=0, stream=True)
        if chunk.choices[0].logprobs is not None
        for each in chunk.choices[0].logprobs.content
    ]
    assert [each.token for each in streamed] == [each.token for each in tokens]
    for one, other in zip(streamed, tokens, strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=1e-3)
    old = served.client.completions.create(model="demo", prompt="Once upon", max_tokens=6, seed=1, logprobs=2)
    found = old.choices[0].logprobs
    assert len(found.tokens) == len(found.token_logprobs) == len(found.top_logprobs) == 6
    assert found.text_offset[0] == 0
    assert "".join(found.tokens) == old.choices[0].text


@pytest.mark.parametrize("engine", ["llama", "onnx"])
def test_log_probabilities_are_of_the_text_and_of_nothing_else(serve: Callable[..., Any], engine: str) -> None:
    """The token that ends an answer is none of its text."""
    served = serve(engine)
    asked = {"logprobs": True, "top_logprobs": 1, "extra_body": {"grammar": 'root ::= "a dog" | "a cat"'}}
    answer = served.chat(**asked)
    choice = answer.choices[0]
    assert choice.ended_by == "eos"
    assert b"".join(bytes(each.bytes) for each in choice.logprobs.content).decode() == choice.message.content
    assert len(choice.logprobs.content) == answer.usage.completion_tokens - 1
    streamed = [chunk.choices[0].logprobs for chunk in served.chat(**asked, stream=True)]
    tokens = [each.token for told in streamed if told for each in told.content]
    assert tokens == [each.token for each in choice.logprobs.content]


def test_json_is_valid_by_its_schema(served: Any) -> None:
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 8},
            "age": {"type": "integer", "minimum": 0, "maximum": 20},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "dog", "schema": schema, "strict": True}}
    for seed in range(3):
        answer = served.chat("Name a dog.", response_format=wanted, max_tokens=60, seed=seed)
        jsonschema.validate(json.loads(answer.choices[0].message.content), schema)
        text = served.model.generate("Name a dog.", json_schema=schema, max_tokens=60, seed=seed).read()
        assert answer.choices[0].message.content == text
    text = served.model.generate("A dog: ", raw=True, json_schema=schema, max_tokens=60, seed=1).read()
    continued = served.client.completions.create(
        model="demo", prompt="A dog: ", max_tokens=60, seed=1, extra_body={"response_format": wanted}
    )
    assert continued.choices[0].text == text
    jsonschema.validate(json.loads(text), schema)
    found = [
        served.chat("Name a dog.", response_format={"type": "json_object"}, max_tokens=400, seed=seed)
        for seed in range(3)
    ]
    whole = [each.choices[0] for each in found if each.choices[0].finish_reason == "stop"]
    assert whole
    assert all(isinstance(json.loads(choice.message.content), dict) for choice in whole)


def test_parts_roles_and_names_of_messages_are_those_of_plain_ones(served: Any) -> None:
    plain = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "One\ntwo"}]
    rich = [
        {"role": "developer", "content": [{"type": "text", "text": "Be brief."}]},
        {"role": "user", "name": "ann", "content": [{"type": "text", "text": "One"}, {"type": "text", "text": "two"}]},
    ]
    first, second = (served.chat(messages=messages).choices[0].message.content for messages in (plain, rich))
    assert first == second == served.model.generate(plain, seed=7, max_tokens=24).read()


def test_a_client_may_ask_who_guessed_each_token(served: Any) -> None:
    answer = served.chat(extra_body={"token_events": True})
    events = answer.choices[0].token_events
    assert "".join(event["text"] for event in events) == answer.choices[0].message.content
    assert sum(event["drafted_by"] is not None for event in events) == answer.usage.accepted_tokens
    assert events[-1]["round"] == answer.usage.rounds
    assert all(event["logprob"] is None and event["top"] == [] for event in events)
    # Whoever was chosen to draft, not who chose.
    assert {event["drafted_by"] for event in events} <= {None, "ngram", "sequence", "tree", "hierarchy"}
    answer = served.chat(extra_body={"token_events": True}, logprobs=True, top_logprobs=2)
    (choice,) = answer.choices
    for event, told in zip(choice.token_events, choice.logprobs.content, strict=True):
        assert event["logprob"] == told.logprob
        assert [each["logprob"] for each in event["top"]] == [each.logprob for each in told.top_logprobs]
        assert event["top"][0]["text"].encode() == bytes(told.top_logprobs[0].bytes)


def test_why_an_answer_ended_is_told_in_two_words(served: Any) -> None:
    """OpenAI has one word for all limits."""
    ways: list[tuple[dict[str, Any], tuple[str, str]]] = [
        ({"max_tokens": 2, "extra_body": {"ignore_eos": True}}, ("length", "length")),
        ({"max_tokens": 200, "stop": ["a"]}, ("stop", "stop")),
        ({"max_tokens": 2, "extra_body": {"grammar": 'root ::= ""'}}, ("stop", "eos")),
    ]
    for fields, words in ways:
        choice = served.chat(**fields).choices[0]
        assert (choice.finish_reason, choice.ended_by) == words
        *_, last = served.chat(**fields, stream=True)
        assert (last.choices[0].finish_reason, last.choices[0].ended_by) == words


def test_an_answer_that_memory_ends_says_so(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Degradation, "before_reply", lambda *_: False)
    choice = served.chat().choices[0]
    assert (choice.finish_reason, choice.ended_by, choice.message.content) == ("length", "memory", "")


def test_several_prompts_tell_what_was_not_read_of_each(served: Any) -> None:
    prompts = ["Once upon a time there was a dog. " * 4, "A cat sat in the garden all day. " * 4]
    for n in (1, 2):
        alone = [served.client.completions.create(model="demo", prompt=p, max_tokens=1) for p in prompts * 2][2:]
        both = served.client.completions.create(model="demo", prompt=prompts, max_tokens=1, n=n)
        cached = sum(each.usage.prompt_tokens_details.cached_tokens for each in alone)
        assert both.usage.prompt_tokens_details.cached_tokens == cached > 0


def test_the_clients_own_accumulation_of_chunks_is_the_whole_answer(served: Any) -> None:
    state = ChatCompletionStreamState()
    asked: dict[str, Any] = {"stop": ["."], "max_tokens": 200}
    for chunk in served.chat(**asked, stream=True, stream_options={"include_usage": True}, logprobs=True):
        state.handle_chunk(chunk)
    whole = served.chat(**asked)
    assert whole.choices[0].finish_reason == "stop"
    assert state.get_final_completion().choices[0].message.content == whole.choices[0].message.content


def test_models_can_be_listed(served: Any) -> None:
    assert [model.id for model in served.client.models.list()] == ["demo"]
    assert served.client.models.retrieve("demo").context_length == served.model.n_ctx
    with pytest.raises(openai.NotFoundError):
        served.client.models.retrieve("gpt-4")


@pytest.mark.parametrize("engine", ["llama", "onnx"])
def test_a_growing_conversation_is_not_read_again_and_stays_the_same(serve: Callable[..., Any], engine: str) -> None:
    served = serve(engine)
    messages: list[Any] = [{"role": "user", "content": "Tell me a long story about a dog and a cat. " * 8}]
    n_before = 0
    for turn in range(3):
        fresh = served.model.generate(messages, seed=turn, max_tokens=16).read()
        answer = served.chat(messages=messages, seed=turn, max_tokens=16)
        assert answer.choices[0].message.content == fresh
        cached = answer.usage.prompt_tokens_details.cached_tokens
        # The whole prompt before this one, and as much of its answer as is cut into the same tokens again.
        assert cached >= n_before - 1
        n_before = answer.usage.prompt_tokens
        messages += [{"role": "assistant", "content": fresh}, {"role": "user", "content": "And then?"}]


def test_an_answer_tells_its_speed_up_where_it_was_drafted(served: Any) -> None:
    told = [served.chat(max_tokens=60, seed=seed) for seed in range(3)]
    speeds = [(answer.usage.drafted_tokens > 0, answer.model_extra["edge_spec"]["speed_up"]) for answer in told]
    assert all((speed is not None and 0 < speed < 20) == drafted for drafted, speed in speeds)
    assert served.chat(extra_body={"speculation": "off"}).model_extra["edge_spec"]["speed_up"] is None
    assert served.chat(n=2).model_extra["edge_spec"]["speed_up"] is None
    # The time of grammars and log probabilities is not that of drafts.
    schema = {"properties": {"a long name": {"const": "and a long text"}}, "required": ["a long name"]}
    for fields in ({"extra_body": {"json_schema": schema}, "max_tokens": 60}, {"logprobs": True, "max_tokens": 60}):
        # How often drafts seem to pay is a matter of times: the first answer with some will do.
        told = []
        while not any(answer.usage.drafted_tokens for answer in told):
            assert len(told) < 200
            told.append(served.chat(seed=len(told), **fields))
        assert all(answer.model_extra["edge_spec"]["speed_up"] is None for answer in told)


def test_an_answer_in_company_tells_no_speed_up(probe_cache: Path) -> None:
    """Its rounds were not those of a text alone, whose plain ones are known."""
    with edge_spec.load("demo", speculation="sequence", n_ctx=256, cache_dir=probe_cache) as model:
        replies = model.generate_many(["Tell me a story."] * 2, seed=1, max_tokens=20)
        replies.read()
        done = [reply.statistics for reply in replies.answers]
        assert all(each.shared and each.drafted for each in done)
        assert [model.speed_up(each) for each in done] == [None, None]
        alone = model.generate("Tell me a story.", max_tokens=20)
        alone.read()
        assert not alone.statistics.shared


def test_an_answer_that_was_cut_is_continued(served: Any) -> None:
    question = {"role": "user", "content": "Tell me a story about a dog. <|im_end|>"}
    begun = served.chat(messages=[question], temperature=0, max_tokens=6).choices[0].message.content
    messages = [question, {"role": "assistant", "content": begun}]
    fields = {"messages": messages, "temperature": 0, "max_tokens": 12}
    body = {"continue_final_message": True, "add_generation_prompt": False}
    going_on = served.chat(**fields, extra_body=body).choices[0].message.content
    whole = served.chat(messages=[question], temperature=0, max_tokens=40).choices[0].message.content
    assert going_on and whole.startswith(begun + going_on)
    streamed = served.chat(**fields, extra_body=body, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in streamed) == going_on
    # Without the field another turn begins, and without a beginning the model may write anybody's.
    assert served.chat(**fields).choices[0].message.content != going_on
    longer = served.chat(**fields).usage.prompt_tokens
    assert served.chat(**fields, extra_body={"add_generation_prompt": False}).usage.prompt_tokens < longer
    for wrong, param in (
        ({"continue_final_message": True, "add_generation_prompt": True}, "add_generation_prompt"),
        ({"continue_final_message": True, "messages": [question]}, "continue_final_message"),
    ):
        answer = served.post(json={**fields, **wrong})
        assert answer.status_code == 400 and answer.json()["error"]["param"] == param
