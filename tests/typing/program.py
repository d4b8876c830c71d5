"""A program of a user's, which has to pass both type checkers at their strictest without a comment for them."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import edge_spec
from edge_spec import ChatSession, Drafter, Mode, Reply, TextModel, ToolCall, Tree
from edge_spec.testing import TableModel, random_table, require_lossless


class LastAgain(Drafter):
    """Guesses that the last token comes again."""

    def draft(self, limit: int) -> Tree:
        return Tree.sequence([*self.text.tokens[-1:]] * limit)


def ask(model: TextModel, question: str) -> str:
    reply = model.generate(question, seed=7, max_tokens=40, temperature=0.5, stop=["\n\n"])
    for piece in reply:
        print(piece, end="", flush=True)
    print(json.dumps({"statistics": reply.statistics.to_json(), "settings": reply.settings.to_json()}))
    return str(reply)


def chances(reply: Reply) -> list[tuple[int | None, str]]:
    return [(event.id, event.text) for event in reply.events()]


def talk(model: TextModel, path: Path) -> ChatSession:
    session = ChatSession.load(model, path, on_notice=print) if path.exists() else model.chat("Be brief.", seed=1)
    session.send("Hello", max_tokens=20).read(print)
    session.save(path)
    return session


def use_tools(model: TextModel, tools: Sequence[Mapping[str, object]]) -> list[tuple[str, object]]:
    session = model.chat(tools=tools, seed=1, max_tokens=40)
    reply = session.send("What time is it?", tool_choice="required", parallel_tool_calls=False)
    said = "".join(text for is_thought, text in reply.parts() if not is_thought)
    calls: tuple[ToolCall, ...] = reply.tool_calls
    if calls:
        print(said, session.send([call.result("noon") for call in calls]).read())
        messages = [{"role": "user", "content": "What time is it?"}, reply.message, calls[0].result({"hour": 12})]
        print(model.generate(messages, tools=tools).answer, model.count_tokens(messages, tools=tools))
    return [(call.name, call.arguments["zone"]) for call in calls]


async def many(prompts: Sequence[str]) -> list[str]:
    async with edge_spec.aload("demo", n_ctx=512) as model:
        replies = [model.generate(prompt, seed=3, max_tokens=20) for prompt in prompts]
        tasks = [asyncio.create_task(reply.aread()) for reply in replies]
        return [await task for task in tasks]


def share_accepted() -> float:
    table = random_table(5, order=1, seed=3)
    print(TableModel(table, n_ctx=100).n_vocab, random_table(5, order=1, like=table).shape)
    return require_lossless(lambda table: LastAgain(), n_cases=20)


def main() -> None:
    mode = Mode(name="last", build=lambda models: LastAgain(), limit=1)
    with edge_spec.load("demo", memory="1GiB", speculation=mode) as model:
        n_tokens = len(model.prompt_of([{"role": "user", "content": "Hello"}]))
        print(n_tokens, ask(model, "Tell me a story."))
        best = model.generate("Hello", n=3, max_tokens=8)
        print(best.read(), [str(each) for each in best.answers], chances(model.generate("Hi", max_tokens=4)))
        print(model.generate_many(["a", "b"], max_tokens=4).texts, talk(model, Path("talk.chat")).n_turns)
        clock = {"name": "clock", "parameters": {"type": "object", "properties": {"zone": {"enum": ["UTC", "CET"]}}}}
        print(use_tools(model, [{"type": "function", "function": clock}]))
    print(share_accepted(), asyncio.run(many(["Hello", "Hi"])))


if __name__ == "__main__":
    main()
