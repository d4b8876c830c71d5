"""Laws of LangChain against the server, where `langchain-openai` is installed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

langchain_openai = pytest.importorskip("langchain_openai")
messages = pytest.importorskip("langchain_core.messages")
pydantic = pytest.importorskip("pydantic")

# LangChain warns of itself and of Pydantic, which is no matter of the server's.
pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("default")]

DOG = "Tell me a story about a dog."


@pytest.fixture
def chat(served: Any) -> Any:
    return langchain_openai.ChatOpenAI(
        base_url=f"{served.url}/v1", api_key="none", model="demo", seed=7, max_tokens=24, max_retries=0, timeout=60
    )


def test_answers_streams_and_batches_are_those_of_generate(served: Any, chat: Any) -> None:
    text = served.model.generate(DOG, seed=7, max_tokens=24).read()
    answer = chat.invoke(DOG)
    assert answer.content == text
    assert answer.response_metadata["system_fingerprint"] == served.model.profile.name
    assert answer.usage_metadata["output_tokens"] == 24
    assert "".join(chunk.content for chunk in chat.stream(DOG)) == text
    assert [each.content for each in chat.batch([DOG, DOG, DOG])] == [text] * 3
    assert asyncio.run(chat.ainvoke(DOG)).content == text


def test_a_conversation_with_roles_and_parts(served: Any, chat: Any) -> None:
    told = [
        messages.SystemMessage("You are a friend."),
        messages.HumanMessage("Hello."),
        messages.AIMessage("Hi!"),
        messages.HumanMessage([{"type": "text", "text": DOG}]),
    ]
    roles = ("system", "user", "assistant", "user")
    contents = ("You are a friend.", "Hello.", "Hi!", DOG)
    plain = [{"role": role, "content": content} for role, content in zip(roles, contents, strict=True)]
    assert chat.invoke(told).content == served.model.generate(plain, seed=7, max_tokens=24).read()


def test_tools_are_called_and_answered(chat: Any) -> None:
    def get_weather(city: str) -> str:
        """The weather in a city."""
        return f"rain in {city}"

    tools = chat.bind_tools([get_weather], tool_choice="any", parallel_tool_calls=False).bind(max_tokens=300)
    told: list[Any] = [messages.HumanMessage("Weather in Rome?")]
    answer = tools.invoke(told)
    (call,) = answer.tool_calls
    assert call["name"] == "get_weather" and isinstance(call["args"]["city"], str)
    streamed = None
    for chunk in tools.stream(told):
        streamed = chunk if streamed is None else streamed + chunk
    assert streamed is not None
    assert [(each["name"], each["args"]) for each in streamed.tool_calls] == [(call["name"], call["args"])]
    result = messages.ToolMessage(get_weather(**call["args"]), tool_call_id=call["id"])
    assert chat.invoke([*told, answer, result]).content


def test_structured_output_is_valid(chat: Any) -> None:
    class Dog(pydantic.BaseModel):  # type: ignore[misc, name-defined]
        """A dog."""

        name: str = pydantic.Field(max_length=12)
        age: int = pydantic.Field(ge=0, le=20)

    for method in ("json_schema", "function_calling"):
        longer = chat.model_copy(update={"max_tokens": 300})
        dog = longer.with_structured_output(Dog, method=method).invoke("A dog.")
        assert isinstance(dog, Dog)


def test_log_probabilities_arrive(chat: Any) -> None:
    told = chat.bind(logprobs=True, top_logprobs=2).invoke(DOG).response_metadata["logprobs"]["content"]
    assert len(told) == 24
    assert all(len(each["top_logprobs"]) == 2 and each["logprob"] <= 0 for each in told)
