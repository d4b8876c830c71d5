"""Laws of many clients at once: nobody is lost or mixed up, and who leaves makes room."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import httpx2
import openai
import pytest
from server_world import wait_until, waiting

pytestmark = pytest.mark.long


def test_fifty_clients_at_a_short_queue_each_get_their_own_answer(serve: Callable[..., Any]) -> None:
    served = serve(at_once=1, max_waiting=8)
    texts = [served.model.generate(f"Count to {n % 10}.", seed=n % 10, max_tokens=6).read() for n in range(10)]
    refused = 0

    async def ask() -> list[str | None]:
        async with openai.AsyncOpenAI(base_url=served.url + "/v1", api_key="none", max_retries=0) as client:

            async def one(n: int) -> str | None:
                messages: Any = [{"role": "user", "content": f"Count to {n % 10}."}]
                asked: Any = {"model": "demo", "messages": messages, "seed": n % 10, "max_tokens": 6}
                if n % 2:
                    answer = await client.chat.completions.create(**asked)
                    return answer.choices[0].message.content
                chunks = await client.chat.completions.create(**asked, stream=True)
                return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])

            async def until_answered(n: int) -> str | None:
                nonlocal refused
                while True:
                    try:
                        return await one(n)
                    except openai.RateLimitError as error:
                        assert error.code == "queue_full"
                        refused += 1
                        # Less than the server asks for, so that the queue is always full.
                        await asyncio.sleep(0.05)

            return await asyncio.gather(*map(until_answered, range(50)))

    assert asyncio.run(ask()) == [texts[n % 10] for n in range(50)]
    assert refused


def test_a_full_queue_says_when_to_come_again(serve: Callable[..., Any]) -> None:
    served = serve(at_once=1, max_waiting=2)
    long = {"max_tokens": 900, "extra_body": {"ignore_eos": True}, "stream": True}
    streams = [served.chat(**long)]
    wait_until(lambda: waiting(served) == (0, 1))
    streams += [served.chat(**long) for _ in range(2)]
    wait_until(lambda: waiting(served) == (2, 1))
    with pytest.raises(openai.RateLimitError) as refused:
        served.chat(max_tokens=1)
    assert refused.value.code == "queue_full"
    assert re.search(r"the queue is full \(2 waiting, 1 being answered\); ask again in \d+ s\b", refused.value.message)
    assert 1 <= int(refused.value.response.headers["retry-after"]) <= 60
    # Nothing is done for a request that has no place: what it asks is not even looked at.
    assert served.post(content=b"{").status_code == 429
    for stream in streams:
        stream.close()
    wait_until(lambda: waiting(served) == (0, 0))
    assert served.chat(max_tokens=1).usage.completion_tokens == 1


@pytest.mark.parametrize("streams", [True, False])
def test_who_leaves_makes_room_at_once(served: Any, streams: bool) -> None:
    asked = {"messages": [{"role": "user", "content": "Go on."}], "max_tokens": 900, "ignore_eos": True, "n": 16}
    if streams:
        with httpx2.stream("POST", served.url + "/v1/chat/completions", json={**asked, "stream": True}) as stream:
            next(stream.iter_lines())
    else:
        with pytest.raises(httpx2.TimeoutException):
            httpx2.post(served.url + "/v1/chat/completions", json=asked, timeout=0.3)
    wait_until(lambda: waiting(served) == (0, 0))
    assert served.chat(max_tokens=1).usage.completion_tokens == 1


@pytest.mark.parametrize("engine", ["llama", "onnx"])
def test_clients_side_by_side_get_what_each_gets_alone(serve: Callable[..., Any], engine: str) -> None:
    served = serve(engine)
    questions = [f"Count to {n % 7}. " * (1 + n % 3) for n in range(24)]
    texts = [served.model.generate(text, seed=n % 7, max_tokens=24).read() for n, text in enumerate(questions)]

    async def ask() -> list[str | None]:
        async with openai.AsyncOpenAI(base_url=served.url + "/v1", api_key="none", max_retries=0) as client:

            async def one(n: int) -> str | None:
                messages: Any = [{"role": "user", "content": questions[n]}]
                asked: Any = {"model": "demo", "messages": messages, "seed": n % 7, "max_tokens": 24}
                if n % 2:
                    return (await client.chat.completions.create(**asked)).choices[0].message.content
                chunks = await client.chat.completions.create(**asked, stream=True)
                return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])

            return await asyncio.gather(*map(one, range(24)))

    assert asyncio.run(ask()) == texts
    wait_until(lambda: waiting(served) == (0, 0))


def test_a_short_request_does_not_wait_for_the_end_of_a_long_one(serve: Callable[..., Any]) -> None:
    served = serve("onnx")
    long = served.chat(max_tokens=900, extra_body={"ignore_eos": True}, stream=True)
    wait_until(lambda: waiting(served) == (0, 1))
    assert served.chat(max_tokens=3).usage.completion_tokens <= 3
    assert waiting(served) == (0, 1), "the long one has ended meanwhile"
    long.close()
    wait_until(lambda: waiting(served) == (0, 0))


def test_a_system_prompt_of_many_requests_is_read_once_and_held_once(serve: Callable[..., Any]) -> None:
    served = serve("onnx")
    rules = "Rule {}: tell a story of the sea, and never one of the land. "
    system = "".join(rules.format(number) for number in range(45))
    n_system = len(served.model.tokenize(system))
    assert n_system > 800

    def value(name: str) -> float:
        lines = httpx2.get(served.url + "/metrics").text.splitlines()
        return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))

    read = value('edge_spec_rows_total{purpose="prompt"}')

    def n_grown() -> float:
        return sum(value(f'edge_spec_rows_total{{purpose="{purpose}"}}') for purpose in ("text", "draft"))

    grown = n_grown()

    def n_held() -> int:
        cells = served.model.cells
        return cells["all"] - cells["free"]

    held_before = n_held()

    async def ask() -> tuple[list[Any], float, float, float]:
        async with openai.AsyncOpenAI(base_url=served.url + "/v1", api_key="none", max_retries=0) as client:

            async def one(n: int) -> Any:
                messages: Any = [{"role": "system", "content": system}, {"role": "user", "content": f"Go on, {n}."}]
                asked: Any = {"model": "demo", "messages": messages, "seed": n, "max_tokens": 60}
                answer = await client.chat.completions.create(**asked, extra_body={"ignore_eos": True})
                return answer.choices[0].message.content

            tasks = [asyncio.create_task(one(n)) for n in range(8)]
            most, shared, held = 0.0, 0.0, 0.0
            while not all(task.done() for task in tasks):
                await asyncio.sleep(0.005)
                texts = await asyncio.to_thread(value, "edge_spec_texts")
                if texts > most:
                    most = texts
                    shared = await asyncio.to_thread(value, 'edge_spec_cells{state="shared"}')
                    cells = served.model.cells
                    held = cells["all"] - cells["free"]
            return [task.result() for task in tasks], most, shared, held

    texts, most, shared, held = asyncio.run(ask())
    assert most > 1
    assert n_system - 16 <= shared <= n_system + 128
    # Each text has some tiles of its own.
    assert held - held_before < shared + 8 * 128
    assert value('edge_spec_rows_total{purpose="prompt"}') - read < n_system + 8 * 64
    # A token is written behind a row of the text or of an accepted draft, but for the first.
    assert n_grown() - grown >= 8 * 59
    for n, text in enumerate(texts):
        messages = [{"role": "system", "content": system}, {"role": "user", "content": f"Go on, {n}."}]
        alone = served.model.generate(messages, seed=n, max_tokens=60, ignore_eos=True, reuse=False)
        assert alone.read() == text
