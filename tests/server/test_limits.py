"""Laws of time and size: no request takes longer than is allowed, whoever delays it, and none keeps the others waiting.

Each law also says what the log tells of it.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import openai
import pytest
from server_world import wait_until, waiting
from uvicorn.protocols.http.h11_impl import RequestResponseCycle

from edge_spec.memory import Ledger
from edge_spec.model import TextModel
from edge_spec.sampling.json_schema import schema_to_lark
from edge_spec.server.jobs import JobMaker
from edge_spec.server.settings import ServerSettings

pytestmark = pytest.mark.long

ASK = {"messages": [{"role": "user", "content": "Go on."}], "max_tokens": 1}
LONG = {**ASK, "max_tokens": 900, "ignore_eos": True, "n": 16}
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n"


def counted(served: Any, status: int) -> float:
    """Return how many chat completions had this status."""
    name = f'edge_spec_requests_total{{endpoint="/v1/chat/completions",status="{status}"}} '
    lines = httpx2.get(served.url + "/metrics").text.splitlines()
    return next((float(line.removeprefix(name)) for line in lines if line.startswith(name)), 0)


def logged(served: Any, beginning: str) -> str:
    """The line that begins so; it comes when the connection has been served."""
    wait_until(lambda: any(line.startswith(beginning) for line in served.log))
    return next(line for line in served.log if line.startswith(beginning))


def sent(served: Any, *parts: bytes) -> bytes:
    """Return what a client gets that sends this, and then nothing more."""
    host, _, port = served.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(b"".join(parts))
        answer = b""
        while b"\r\n\r\n" not in answer or not answer.endswith(b"}"):
            answer += connection.recv(4096)
        return answer


@pytest.fixture
def hasty(serve: Callable[..., Any]) -> Any:
    """A server that allows little time."""
    served = serve(timeout_s=0.3, name="hasty")
    served.log.clear()
    return served


def test_a_request_that_takes_too_long_is_ended(hasty: Any) -> None:
    before = counted(hasty, 504)
    with pytest.raises(openai.InternalServerError) as ended:
        hasty.chat(max_tokens=900, n=16, model="hasty", extra_body={"ignore_eos": True})
    assert (ended.value.status_code, ended.value.code) == (504, "timeout")
    found = httpx2.post(hasty.url + "/v1/chat/completions", json={**LONG, "stream": True}, timeout=60)
    assert (found.status_code, "took longer" in found.text) == (200, True)
    assert " written, " in logged(hasty, "POST /v1/chat/completions 504, streamed, ")
    assert counted(hasty, 504) == before + 2
    wait_until(lambda: waiting(hasty) == (0, 0))


def test_the_time_counts_from_the_arrival_of_the_request(hasty: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert b" 504 " in sent(hasty, HEAD, b"{")
    prepare = JobMaker.chat

    def slow(*given: Any, **more: Any) -> Any:
        time.sleep(0.5)
        return prepare(*given, **more)

    monkeypatch.setattr(JobMaker, "chat", slow)
    assert hasty.post(json=ASK).json()["error"]["code"] == "timeout"
    wait_until(lambda: waiting(hasty) == (0, 0))


def test_a_body_that_comes_too_slowly_is_not_waited_for(serve: Callable[..., Any]) -> None:
    answer = sent(serve(body_timeout_s=0.2), HEAD, b"{")
    assert b" 408 " in answer and b"connection: close" in answer.lower()


def test_bodies_that_arrive_at_once_are_bounded_together(serve: Callable[..., Any]) -> None:
    served = serve(max_body_bytes=1024)
    host, _, port = served.url.removeprefix("http://").partition(":")
    halves = [socket.create_connection((host, int(port)), timeout=20) for _ in range(16)]
    try:
        for half in halves:
            half.sendall(HEAD.replace(b"100", b"1024") + b" " * 1000)
        wait_until(lambda: served.post(content=b" " * 1000).status_code == 429)
        assert served.chat(max_tokens=1).usage.completion_tokens == 1
    finally:
        for half in halves:
            half.close()
    wait_until(lambda: served.post(content=b" " * 1000).status_code == 400)


def test_a_body_without_an_end_is_not_read_for_ever(serve: Callable[..., Any]) -> None:
    served = serve(max_body_bytes=1024, discarded_bytes=4096)
    chunked = HEAD.replace(b"Content-Length: 100", b"Transfer-Encoding: chunked")
    chunk = b"400\r\n" + b" " * 1024 + b"\r\n"
    assert b" 413 " in sent(served, chunked, chunk * 8)


@pytest.mark.parametrize("order", [1, -1])
def test_a_request_that_says_twice_where_it_ends_is_the_last_one(serve: Callable[..., Any], order: int) -> None:
    lengths = b"\r\n".join([b"Transfer-Encoding: chunked", b"Content-Length: 5"][::order])
    first = HEAD.replace(b"Content-Length: 100", lengths) + b"0\r\n\r\n"
    answer = sent(serve(), first, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"connection: close" in answer.lower()


def test_while_a_stream_waits_for_its_turn_its_connection_is_kept(serve: Callable[..., Any]) -> None:
    served = serve(keep_alive_s=0.05)
    chat = served.url + "/v1/chat/completions"
    with httpx2.stream("POST", chat, json={**LONG, "stream": True}, timeout=60) as before:
        lines = before.iter_lines()
        next(lines)
        with httpx2.stream("POST", chat, json={**ASK, "stream": True}, timeout=60) as stream:
            assert next(stream.iter_lines()) == ": waiting"
    wait_until(lambda: waiting(served) == (0, 0))


def test_a_client_that_takes_nothing_keeps_nobody_waiting(
    serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    served = serve(timeout_s=1.0, last_words_s=0.1, name="patient")
    served.log.clear()
    sends: list[RequestResponseCycle] = []
    send = RequestResponseCycle.send

    async def never(cycle: RequestResponseCycle, message: Any) -> None:
        """As if all buffers on the way to the first client were full once it has the head of its answer."""
        sends.append(cycle)
        if cycle is sends[0] and sends.count(cycle) > 1:
            await asyncio.sleep(3600)
        await send(cycle, message)

    with monkeypatch.context() as patched:
        patched.setattr(RequestResponseCycle, "send", never)
        asked = {**ASK, "max_tokens": 8, "ignore_eos": True, "speculation": "off", "stream": True}
        with httpx2.stream("POST", served.url + "/v1/chat/completions", json=asked, timeout=60):
            wait_until(lambda: len(sends) > 1)
            assert served.post(json=ASK).json()["usage"]["completion_tokens"] == 1
            assert ", 8 written, " in logged(served, "POST /v1/chat/completions 504, streamed, ")
    wait_until(lambda: waiting(served) == (0, 0))


@pytest.mark.parametrize("streams", [True, False])
def test_a_client_that_leaves_is_told_apart_in_the_log(served: Any, streams: bool) -> None:
    served.log.clear()
    before = counted(served, 499)
    asked = {"url": served.url + "/v1/chat/completions", "json": {**LONG, "stream": streams}}
    if streams:
        with httpx2.stream("POST", **asked, timeout=60) as stream:
            next(stream.iter_lines())
    else:
        with pytest.raises(httpx2.TimeoutException):
            httpx2.post(**asked, timeout=0.3)
    logged(served, "POST /v1/chat/completions 499" + ", streamed, " * streams)
    assert counted(served, 499) == before + 1


def test_too_many_connections_are_told_so_and_counted(serve: Callable[..., Any]) -> None:
    served = serve(max_connections=1)
    before = counted(served, 503)
    host, _, port = served.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=20):
        found = served.post(json=ASK)
    assert (found.status_code, found.json()["error"]["code"]) == (503, "too_many_connections")
    assert found.headers["retry-after"] == "1"
    logged(served, "POST /v1/chat/completions 503")
    assert counted(served, 503) == before + 1
    assert served.chat(max_tokens=1).usage.completion_tokens == 1


def test_what_is_no_http_is_refused_in_the_form_of_the_api(served: Any) -> None:
    answer = sent(served, b"GET\x00 / nonsense\r\n\r\n")
    assert b" 400 " in answer and b'"code": "invalid_http"' in answer


def heavy(schema: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2, "json_schema": schema}


HEAVY: dict[str, tuple[str, dict[str, Any], str]] = {
    "messages": ("chat/completions", {"messages": [{"role": "user", "content": "x"}] * 50_000}, "messages"),
    "marks": ("chat/completions", {"messages": [{"role": "user", "content": "<|im_end|>" * 390_000}]}, "messages"),
    "parts": (
        "chat/completions",
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "<" * 3_000}] * 900}]},
        "messages",
    ),
    "token ids": ("completions", {"prompt": [0] * 1_000_000}, "prompt"),
    "a second prompt": ("completions", {"prompt": [[0], [0] * 900_000]}, "prompt"),
    "prompts": ("completions", {"prompt": ["a"] * 300_000}, "prompt"),
    "biases": (
        "chat/completions",
        {"messages": [{"role": "user", "content": "x"}], "logit_bias": {str(n): 1 for n in range(100_000)}},
        "logit_bias",
    ),
    "alternatives": ("chat/completions", heavy({"anyOf": [{"maxItems": n} for n in range(1_500)]}), "json_schema"),
    "alternatives in several places": (
        "chat/completions",
        heavy({"prefixItems": [{"anyOf": [{"maxItems": n} for n in range(120)]} for _ in range(9)]}),
        "json_schema",
    ),
}


@pytest.mark.parametrize("kind", HEAVY)
def test_what_cannot_be_is_refused_by_its_size_before_any_work(
    served: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither is a template rendered nor a text tokenized, nor a grammar made."""
    path, body, param = HEAVY[kind]

    def work(*_: Any, **__: Any) -> Any:
        raise AssertionError("work was done for it")

    if "json_schema" not in body:
        monkeypatch.setattr("edge_spec.server.openai_api.parse", work)
    monkeypatch.setattr("edge_spec.sampling.guidance.GuidedGrammar.__init__", work)
    found = served.post(f"/v1/{path}", json=body)
    assert found.status_code == 400 and found.json()["error"]["param"] == param


def test_types_and_alternatives_that_are_repeated_count_once() -> None:
    for many, one in (
        ({"type": ["array", "null"] * 3000}, {"type": ["array", "null"]}),
        ({"anyOf": [{"type": "array"}, {"type": "null"}] * 20}, {"anyOf": [{"type": "array"}, {"type": "null"}]}),
    ):
        assert schema_to_lark(many) == schema_to_lark(one)


def test_an_answer_that_a_template_may_shorten_is_not_counted(served: Any) -> None:
    """Templates leave thoughts of earlier answers out."""
    jobs = JobMaker(served.model, ServerSettings(), Ledger(1 << 30))
    thought = {"role": "assistant", "content": "<think>" + "x" * 1_000_000}
    jobs.require_size({"messages": [thought, {"role": "user", "content": " " * 100_000 + "x"}]})


def test_a_short_request_waits_for_no_preparation(serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    served, gate, begun = serve(name="lanes", timeout_s=30.0), threading.Event(), threading.Semaphore(0)
    requests = TextModel.requests

    def slow(model: TextModel, prompts: Any, **options: Any) -> Any:
        if options.get("grammar") is not None:
            begun.release()
            gate.wait()
        return requests(model, prompts, **options)

    monkeypatch.setattr(TextModel, "requests", slow)
    ask = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(served.post, json={**ask, "grammar": 'root ::= "a"'}) for _ in range(3)]
        assert begun.acquire(timeout=30) and begun.acquire(timeout=30)
        assert served.post(json=ask).status_code == 200
        assert not any(each.done() for each in waiting)
        gate.set()
        assert [each.result().status_code for each in waiting] == [200] * 3
