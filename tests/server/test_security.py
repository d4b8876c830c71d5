"""Laws of who may use a server."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import httpx2
import openai
import pytest
from server_world import wait_until

pytestmark = pytest.mark.long

_ODD = (
    *("evil@127.0.0.1", "[::1]x.evil.com", "127.0.0.1:evil", "evil\\@127.0.0.1", "127.0.0.1/", "127.0.0.1:", "[::1"),
    *("127.0.0.1:80:80", "::1", "127.0.0.1#", "127.0.0.1?"),
)
"""No browser sends these."""

BODY = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}


def status(served: Any, **headers: str) -> int:
    return int(served.post(json=BODY, headers=headers).status_code)


def test_a_page_whose_name_leads_here_is_refused(served: Any) -> None:
    port = served.url.rpartition(":")[2]
    for host in (
        "evil.example",
        f"evil.example:{port}",
        "127.0.0.1.evil.example",
        "",
        "[",
        "localhost.evil.example",
        *_ODD,
    ):
        assert status(served, Host=host) == 403
    for host in ("localhost", f"localhost:{port}", f"127.0.0.1:{port}", f"[::1]:{port}", "LOCALHOST"):
        assert status(served, Host=host) == 200


def test_pages_from_elsewhere_are_refused(served: Any, serve: Callable[..., Any]) -> None:
    for origin in ("https://evil.example", "null", "http://127.0.0.1:1", "http://localhost", "file://"):
        assert status(served, Origin=origin) == 403
    assert status(served, Origin=served.url) == 200
    open_to_one = serve(allowed_origins=("https://chat.example",))
    assert status(open_to_one, Origin="https://evil.example") == 403
    found = open_to_one.post(json=BODY, headers={"Origin": "https://chat.example"})
    assert found.headers["access-control-allow-origin"] == "https://chat.example"
    asked = {"Origin": "https://chat.example", "Access-Control-Request-Method": "POST"}
    assert httpx2.options(open_to_one.url + "/v1/chat/completions", headers=asked).status_code == 200
    # A browser asks so before a page of the internet may ask a computer at home.
    asked["Access-Control-Request-Private-Network"] = "true"
    found = httpx2.options(open_to_one.url + "/v1/chat/completions", headers=asked)
    assert found.status_code == 200 and found.headers["access-control-allow-private-network"] == "true"
    asked["Origin"] = "https://evil.example"
    found = httpx2.options(open_to_one.url + "/v1/chat/completions", headers=asked)
    assert found.status_code == 400 and "access-control-allow-origin" not in found.headers


def test_a_page_from_elsewhere_may_lead_to_the_page_and_embed_nothing(served: Any) -> None:
    elsewhere = {"Sec-Fetch-Site": "cross-site"}
    assert httpx2.get(served.url + "/", headers=elsewhere).status_code == 200
    for path in ("/v1/models", "/metrics"):
        assert httpx2.get(served.url + path, headers=elsewhere).status_code == 403
        assert httpx2.get(served.url + path, headers={"Sec-Fetch-Site": "same-origin"}).status_code == 200
    assert status(served, **elsewhere) == 403


def test_an_open_server_goes_by_its_addresses_and_by_no_name_of_others(serve: Callable[..., Any]) -> None:
    served = serve(host="0.0.0.0", insecure=True, allowed_hosts=("models.example",))
    own = ("192.168.7.7", "10.0.0.1:8080", "[2001:db8::1]:8080", "localhost", socket.gethostname(), "models.example")
    refused = ("evil.example", "192.168.7.7.evil.example", "192.168.7", "0x7f.1", "a", "")
    with httpx2.Client(base_url=served.url) as client:
        for host, expected in (*((host, 200) for host in own), *((host, 403) for host in refused)):
            assert client.get("/v1/models", headers={"Host": host}).status_code == expected, host
            page = {"Host": host, "Origin": f"http://{host}"}
            assert client.get("/v1/models", headers=page).status_code == expected, host


def test_an_allowed_page_can_read_why_it_is_refused(serve: Callable[..., Any]) -> None:
    served = serve(api_key="s3cret", allowed_origins=("https://chat.example",))
    found = served.post(json=BODY, headers={"Origin": "https://chat.example"})
    assert found.status_code == 401
    assert found.headers["access-control-allow-origin"] == "https://chat.example"
    found = served.post(json=BODY, headers={"Origin": "https://evil.example"})
    assert found.status_code == 403
    assert "access-control-allow-origin" not in found.headers


def test_without_the_key_there_is_only_health(serve: Callable[..., Any]) -> None:
    served = serve(api_key="s3cret")
    assert served.chat(max_tokens=1).usage.completion_tokens == 1
    for given in ("", "Bearer", "Bearer s3cre", "Bearer s3cret!", "Basic s3cret", "s3cret", "Bearer é"):
        found = served.post(json=BODY, headers={"Authorization": given.encode()} if given else {})
        assert (found.status_code, found.json()["error"]["code"]) == (401, "invalid_api_key")
    for path in ("/v1/models", "/metrics"):
        assert httpx2.get(served.url + path).status_code == 401
    assert httpx2.get(served.url + "/health").status_code == 200
    with pytest.raises(openai.AuthenticationError):
        served.client.with_options(api_key="wrong").models.list()


def test_a_request_whose_head_never_ends_is_cut_off(serve: Callable[..., Any]) -> None:
    served = serve(head_timeout_s=0.3)
    host, _, port = served.url.removeprefix("http://").partition(":")
    whole = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for before, head in ((b"", b""), (b"", b"GET /hea"), (b"", whole[:-2] + b"X: "), (whole, b"GET /hea")):
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            if before:
                connection.sendall(before)
                assert b"200 OK" in connection.recv(4096)
            connection.sendall(head)
            while connection.recv(4096):
                pass
    # What takes its time after its head is not affected.
    assert served.chat(max_tokens=300, extra_body={"ignore_eos": True}).usage.completion_tokens == 300


def test_metrics_count(serve: Callable[..., Any]) -> None:
    served = serve(name="counted")

    def value(name: str) -> float:
        lines = httpx2.get(served.url + "/metrics").text.splitlines()
        return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))

    usage = served.chat(model="counted").usage
    assert value("edge_spec_completion_tokens_total") == usage.completion_tokens == 24
    assert value("edge_spec_prompt_tokens_total") == usage.prompt_tokens
    assert value("edge_spec_drafted_tokens_total") == usage.drafted_tokens
    assert value("edge_spec_accepted_tokens_total") == usage.accepted_tokens
    # A request is counted once its answer is sent, so the client may read the metrics a moment earlier.
    wait_until(lambda: served.log != [])
    assert value('edge_spec_requests_total{endpoint="/v1/chat/completions",status="200"}') == 1
    assert value("edge_spec_requests_waiting") == 0
    assert value('edge_spec_memory_bytes{name="KV cache",owner="target"}') > 0


def test_the_log_has_a_line_for_each_request_and_none_of_its_text(serve: Callable[..., Any]) -> None:
    served = serve(name="logged")
    n_written = served.chat("An unlikely question", model="logged").usage.completion_tokens
    wait_until(lambda: served.log != [])  # the line is written once the answer is sent
    assert len(served.log) == 1
    assert served.log[0].startswith("POST /v1/chat/completions 200, ")
    assert f", {n_written} written, " in served.log[0]
    assert "unlikely" not in served.log[0]


def test_what_is_refused_or_not_there_is_logged_and_counted_too(serve: Callable[..., Any]) -> None:
    served = serve(name="strict", api_key="s3cret")
    chat = "/v1/chat/completions"
    asked = [
        (served.post(json=BODY), f"POST {chat} 401, invalid_api_key, "),
        (served.post(json=BODY, headers={"Origin": "https://evil.example"}), f"POST {chat} 403, origin, "),
        (httpx2.get(served.url + "/health"), "GET /health 200, "),
        (httpx2.get(served.url + "/"), "GET / 200, "),
        (served.client.with_options(max_retries=0).models.with_raw_response.list(), "GET /v1/models 200, "),
        (
            httpx2.get(served.url + "/no%0Awhere", headers={"Authorization": "Bearer s3cret"}),
            r"GET /no\nwhere 404, unknown_url, ",
        ),
    ]
    # A line is written once its answer is sent, so the last one may come a moment later.
    wait_until(lambda: len(served.log) >= len(asked))
    assert len(served.log) == len(asked)
    for line, (_, beginning) in zip(served.log, asked, strict=True):
        assert line.startswith(beginning)
    text = httpx2.get(served.url + "/metrics", headers={"Authorization": "Bearer s3cret"}).text
    for endpoint, found in ((chat, 401), (chat, 403), ("/health", 200), ("other", 404)):
        assert f'edge_spec_requests_total{{endpoint="{endpoint}",status="{found}"}} 1.0' in text
