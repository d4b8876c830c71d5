"""A user's program that talks to a server with OpenAI's client. Written from the documents.

python client.py URL
"""

import json
import sys

import openai
from openai.types.chat import (
    ChatCompletionFunctionToolParam,
    ChatCompletionMessageFunctionToolCallParam,
    ChatCompletionMessageParam,
)

CLOCK: ChatCompletionFunctionToolParam = {
    "type": "function",
    "function": {
        "name": "clock",
        "description": "The time in a zone.",
        "parameters": {
            "type": "object",
            "properties": {"zone": {"type": "string", "enum": ["UTC", "CET"]}},
            "required": ["zone"],
        },
    },
}


def stream(client: openai.OpenAI, model: str, question: str) -> str:
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": question}]
    parts = list[str]()
    with client.chat.completions.create(
        model=model, messages=messages, seed=7, max_tokens=20, stream=True, stream_options={"include_usage": True}
    ) as chunks:
        for chunk in chunks:
            parts += [choice.delta.content for choice in chunk.choices if choice.delta.content]
            if chunk.usage is not None:
                print("usage:", chunk.usage.completion_tokens, sorted(chunk.model_extra or {}))
    return "".join(parts)


def use_tool(client: openai.OpenAI, model: str) -> str:
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What time is it?"}]
    asked = client.chat.completions.create(
        model=model, messages=messages, tools=[CLOCK], tool_choice="required", parallel_tool_calls=False, seed=7
    )
    message = asked.choices[0].message
    for call in message.tool_calls or []:
        if call.type == "function":
            zone = json.loads(call.function.arguments)["zone"]
            print("called:", call.function.name, zone in ("UTC", "CET"))
            made: ChatCompletionMessageFunctionToolCallParam = {
                "id": call.id,
                "type": "function",
                "function": {"name": call.function.name, "arguments": call.function.arguments},
            }
            messages.append({"role": "assistant", "content": message.content, "tool_calls": [made]})
            messages.append({"role": "tool", "tool_call_id": call.id, "content": "noon"})
    told = client.chat.completions.create(model=model, messages=messages, tools=[CLOCK], seed=7, max_tokens=20)
    return told.choices[0].finish_reason


def main() -> None:
    with openai.OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0) as client:
        model = client.models.list().data[0].id
        first, second = stream(client, model, "Hello"), stream(client, model, "Hello")
        print("same:", first == second and bool(first))
        print("after the tool:", use_tool(client, model))
        schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 9}}, "required": ["name"]}
        reply = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "Name a dog."}],
            response_format={"type": "json_schema", "json_schema": {"name": "dog", "schema": {**schema}}},
            extra_body={"top_k": 40, "temprature": 1},
        )
        print("dog:", [*json.loads(reply.choices[0].message.content or "")], (reply.model_extra or {})["edge_spec"])
        try:
            stream(client, "another", "Hello")
        except openai.NotFoundError as error:
            print("refused:", error.code)
        try:
            stream(client, model, "a word " * 9000)
        except openai.BadRequestError as error:
            print("refused:", error.code, error.param)


if __name__ == "__main__":
    main()
