"""Laws of long use: thousands of requests of all kinds leave no memory, files or threads behind; nobody is lost."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import psutil
import pytest

pytestmark = pytest.mark.slow

N_REQUESTS = 2000
WARM_UP = 400
"""So many fill caches that are bounded: of grammars, of earlier texts, of the libraries."""

MOST_GROWTH = 8 << 20
MESSAGES = [{"role": "user", "content": "Hello"}]
SHORT: dict[str, Any] = {"messages": MESSAGES, "max_tokens": 2}
ORIGIN = {"Origin": "https://evil.example"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[psutil.Process, str]]:
    """A server as a process of its own, with a short queue, and its address."""
    command = [sys.executable, "-m", "edge_spec", "serve", "demo", "--engine", "llama", "--threads", "1", "--port", "0"]
    home = tmp_path_factory.mktemp("home")
    environment = {**os.environ, "HOME": str(home), "XDG_CACHE_HOME": str(home)}
    with subprocess.Popen(
        [*command, "--max-waiting", "20"], stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stderr is not None
        url = next(found[0] for line in process.stderr if (found := re.search(r"http://[\d.]+:\d+", line)))
        # Its log must not fill the pipe.
        reading = subprocess.Popen(["cat"], stdin=process.stderr, stdout=subprocess.DEVNULL)
        yield psutil.Process(process.pid), url
        process.terminate()
        reading.wait()


def ask(client: httpx2.Client, number: int) -> int:
    """One of several kinds of requests, whole ones, broken ones and hostile ones; its status."""
    chat = "/v1/chat/completions"
    kind = number % 12
    if kind == 0:
        return client.post(chat, json=SHORT).status_code
    if kind == 1:
        return client.post(chat, json={**SHORT, "stream": True, "logprobs": True, "top_logprobs": 3}).status_code
    if kind == 2:
        return client.post(chat, content=b'{"messages": [').status_code
    if kind == 3:
        # A client that leaves in the middle of an answer.
        long = {**SHORT, "max_tokens": 500, "ignore_eos": True, "stream": True}
        with client.stream("POST", chat, json=long) as answer:
            next(answer.iter_lines())
        return answer.status_code
    if kind == 4:
        grammar = f'root ::= "a" | "b{number}"'
        return client.post("/v1/completions", json={"prompt": "Once", "max_tokens": 2, "grammar": grammar}).status_code
    if kind == 5:
        tools = [{"type": "function", "function": {"name": f"f{number}"}}]
        return client.post(chat, json={**SHORT, "tools": tools, "tool_choice": "required"}).status_code
    if kind == 6:
        return client.get(f"/v1/models/..%2F..%2Fetc%2Fpasswd{number}").status_code
    if kind == 7:
        return client.post(chat, json=SHORT, headers=ORIGIN).status_code
    if kind == 8:
        return client.post(chat, json=SHORT, headers={"Host": f"rebound{number}.example"}).status_code
    if kind == 9:
        return client.post(
            chat, json={**SHORT, "n": 3, "messages": [{"role": "user", "content": "x" * number}]}
        ).status_code
    if kind == 10:
        schema: Any = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}
        wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        return client.post(chat, json={**SHORT, "response_format": wanted}).status_code
    return client.post(chat, content=b"x" * (5 << 20)).status_code


STATUS = [200, 200, 400, 200, 200, 200, 404, 403, 403, None, 400, 413]
"""What each kind gets; a long prompt may or may not fit."""


def test_two_thousand_requests_leave_nothing_behind(server: tuple[psutil.Process, str]) -> None:
    process, url = server
    with httpx2.Client(base_url=url, timeout=120) as client:

        def run(first: int, last: int) -> None:
            for number in range(first, last):
                status = ask(client, number)
                expected = STATUS[number % len(STATUS)]
                assert status == expected or (expected is None and status in (200, 400)), (number, status)

        run(0, WARM_UP)
        before = process.memory_info().rss, process.num_fds(), process.num_threads(), files_of(process)
        run(WARM_UP, WARM_UP + N_REQUESTS)
        assert ask(client, 0) == 200
        after = process.memory_info().rss, process.num_fds(), process.num_threads(), files_of(process)
    assert after[0] - before[0] < MOST_GROWTH
    # The connection of a client that has just left may still be open.
    assert after[1] <= before[1] + 2
    assert after[2] <= before[2]
    assert after[3] == before[3]


def files_of(process: psutil.Process) -> int:
    """Return how many files there are in the home of the server."""
    return sum(1 for path in Path(process.environ()["HOME"]).rglob("*") if path.is_file())


def test_fifty_clients_at_a_short_queue_all_get_their_answer(server: tuple[psutil.Process, str]) -> None:
    _, url = server
    refused = 0

    async def ask_all() -> list[Any]:
        async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=300) as client:

            async def one(number: int) -> str | None:
                nonlocal refused
                messages: Any = [{"role": "user", "content": f"Count to {number % 10}."}]
                while True:
                    try:
                        answer = await client.chat.completions.create(
                            model="demo", messages=messages, seed=number % 10, max_tokens=40
                        )
                    except openai.RateLimitError as error:
                        refused += 1
                        await asyncio.sleep(int(error.response.headers["retry-after"]))
                    else:
                        return answer.choices[0].message.content

            return await asyncio.gather(*map(one, range(50)))

    answers = asyncio.run(ask_all())
    assert refused
    assert answers == [answers[number % 10] for number in range(50)]
    assert len({*answers}) > 5 and all(answers)
