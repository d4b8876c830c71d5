"""Laws of time and size: no request takes longer than is allowed, whoever delays it, and none keeps the others waiting.

Each law also says what the log tells of it.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from typing import Any

import httpx2
import openai
import pytest
from server_world import wait_until, waiting
from uvicorn.protocols.http.h11_impl import RequestResponseCycle

from edge_spec.server.jobs import JobMaker

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

    def slow(*given: Any) -> Any:
        time.sleep(0.5)
        return prepare(*given)

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
