"""What clients make the server hold is claimed, bounded and given back."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest

from edge_spec.errors import BudgetExceeded
from edge_spec.generation.events import TokenEvent
from edge_spec.memory import Ledger, Loan, usage
from edge_spec.server.bodies import json_object, parsed_bytes
from edge_spec.server.dialect import json_of
from edge_spec.server.jobs import MAX_TOLD
from edge_spec.server.told import Told

pytestmark = pytest.mark.long

M = 4 << 20
STORY = [{"role": "user", "content": "Tell me a story."}]


def _filled(before: str, part: str, after: str, n_bytes: int = M) -> bytes:
    return (before + ",".join([part] * ((n_bytes - 100) // (len(part) + 1))) + after).encode()


BODIES = {
    "a text": json.dumps({"messages": [{"role": "user", "content": "a" * (M - 100)}]}).encode(),
    "messages": _filled('{"messages": [', '{"role":"user","content":"a"}', "]}"),
    "lists": _filled('{"messages": [{"role":"user","content":"a"}], "x": [', "[]", "]}"),
    "objects": _filled('{"messages": [{"role":"user","content":"a"}], "x": [', '{"a":1}', "]}"),
    "numbers": _filled('{"prompt": [', "300", "]}"),
    "escaped quotes without an end": b'{"messages": "' + b'\\"' * (M // 2 - 20),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_large_body_takes_no_more_than_was_claimed_for_it(serve: Callable[..., Any], name: str) -> None:
    server = serve("onnx")
    service_bytes = next(line for line in server.model.ledger if line.name == "requests and answers").predicted_bytes
    before = usage().anonymous_bytes
    most, over = [before], threading.Event()

    def watch() -> None:
        while not over.wait(0.002):
            most.append(usage().anonymous_bytes)

    watcher = threading.Thread(target=watch)
    watcher.start()
    started = time.monotonic()
    try:
        answer = server.post(content=BODIES[name])
    finally:
        over.set()
        watcher.join()
    assert answer.status_code in (200, 400, 413, 503), answer.text
    # The client is in the same process, and holds the body, too.
    assert max(most) - before < service_bytes + (32 << 20)
    assert time.monotonic() - started < 60


def test_what_a_body_needs_is_at_least_what_its_values_take() -> None:
    lists, objects = (_filled('{"x": [', part, "]}", n_bytes=M // 8) for part in ("[]", '{"a":1}'))
    for raw in (lists, objects, BODIES["numbers"]):
        before = usage().anonymous_bytes
        body = json_object(raw)
        assert usage().anonymous_bytes - before < parsed_bytes(raw)[0]
        del body


@pytest.mark.parametrize("part", ["[]", "[" * 200 + "]" * 200, "{}", '{"a":1}'])
def test_a_body_of_more_lists_objects_and_names_than_are_read_is_refused_before_it_is(
    serve: Callable[..., Any], part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parse(raw: bytes) -> Any:
        raise AssertionError("it was read")

    monkeypatch.setattr("edge_spec.server.service.json_object", parse)
    served = serve("onnx")
    message = '{"messages": [{"role":"user","content":"a"}], "metadata": ['
    answer = served.post(content=_filled(message, part, "]}", n_bytes=2 * M // 3))
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "body_too_large"


def test_a_response_that_would_tell_too_much_is_refused_before_it_is_written(serve: Callable[..., Any]) -> None:
    server = serve("onnx")
    asked = {"messages": STORY, "n": 128, "logprobs": True, "top_logprobs": 20}
    written = server.model.ledger.held_bytes
    answer = server.post(json=asked)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == "n" and "128 replies" in error["message"] and "at most" in error["message"]
    assert server.model.ledger.held_bytes == written
    n_tokens = server.model.n_ctx - 100
    assert 128 * n_tokens * 21 > MAX_TOLD


def test_a_response_in_pieces_is_the_json_of_the_whole() -> None:
    told = Told()
    choices: list[dict[str, Any]] = [
        {
            "logprobs": {"tokens": ["a", "\u6771"], "token_logprobs": [-1.5, 0.0]},
            "token_events": [{"id": 1}, {"id": 2}],
        },
        {"logprobs": {"tokens": [], "token_logprobs": []}, "token_events": []},
        {"logprobs": {"tokens": ['"'], "token_logprobs": [-9999.0]}, "token_events": [{"id": 3}]},
    ]
    n_bytes = sum(told.add(choice) for choice in choices)
    whole = b"".join(told.within({"index": 0, "logprobs": {"tokens": []}, "token_events": [], "text": "\u6771"}))
    assert json.loads(whole) == {
        "index": 0,
        "text": "\u6771",
        "logprobs": {"tokens": ["a", "\u6771", '"'], "token_logprobs": [-1.5, 0.0, -9999.0]},
        "token_events": [{"id": 1}, {"id": 2}, {"id": 3}],
    }
    assert n_bytes < len(whole)
    nothing = {"index": 0, "logprobs": {"content": []}, "token_events": []}
    assert json.loads(b"".join(Told().within(nothing))) == json.loads(json_of(nothing)) == nothing


def test_a_reader_that_lags_is_given_up_and_what_waited_is_given_back(serve: Callable[..., Any]) -> None:
    server = serve("onnx")
    asked = {
        "messages": STORY, "n": 64, "logprobs": True, "top_logprobs": 20, "stream": True, "ignore_eos": True,
        "max_tokens": 200,
    }  # fmt: skip
    raw = json.dumps(asked).encode()
    address = urlsplit(server.url)
    n_logged = len(server.log)
    with socket.create_connection((address.hostname, address.port)) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(raw)}\r\n\r\n"
        slow.sendall(head.encode() + raw)
        deadline = time.monotonic() + 120
        while len(server.log) == n_logged:
            assert time.monotonic() < deadline, "it was never given up"
            time.sleep(0.1)
    assert " 499, streamed" in server.log[n_logged]
    # Somebody who reads is answered meanwhile and afterwards.
    assert server.chat("Hello").choices[0].message.content
    (line,) = (line for line in server.model.ledger if line.name == "requests and answers")
    assert line.measured_bytes == 0


def test_a_loan_claims_in_steps_and_gives_all_of_it_back() -> None:
    ledger = Ledger(1 << 20)
    with Loan(ledger, "answers") as loan, Loan(ledger, "answers") as other:
        loan.grow(100)
        assert ledger.held_bytes == 0
        loan.grow(600 << 10)
        claimed = ledger.held_bytes
        assert claimed <= loan.held_bytes < claimed + (256 << 10)
        other.grow(300 << 10)
        with pytest.raises(BudgetExceeded):
            other.grow(1 << 20)
        assert other.held_bytes == 300 << 10
        loan.shrink(600 << 10)
        assert loan.held_bytes == 100
        ledger.check_integrity()
    assert ledger.held_bytes == 0
    loan.grow(1 << 30)
    assert ledger.held_bytes == 0 and loan.held_bytes == 0


def test_an_event_that_waits_is_counted_at_what_it_takes() -> None:
    from edge_spec.server.writing import _bytes_of

    before = usage().anonymous_bytes
    events = [
        TokenEvent(id=n, text=f"word{n}", logprob=-n / 7, top={1000 + n + k: -k / 3 - n for k in range(20)}, round=n)
        for n in range(10_000)
    ]
    assert usage().anonymous_bytes - before < 1.1 * _bytes_of(events)
