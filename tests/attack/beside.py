"""What a campaign does to those who share something with others: a server, a file, a folder of records; by number."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import threading
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from chat_world import chat_model, chat_table

from edge_spec import load
from edge_spec.chat import ChatSession
from edge_spec.cli.terminal.autosave import Autosave
from edge_spec.server.running import ModelServer
from edge_spec.server.settings import ServerSettings

__all__ = ["heavy", "require_short_delays", "two_chats", "two_loads"]

_MOST_WAITED_S = 0.5
"""Longer than alone, for the first token of another client, see ``_delay``."""

_MOST_STANDING_S = 3.0
"""While this process computes nothing, since the machine is busy or nobody goes on."""

_TRIES = 3
"""What seems to keep others waiting is sent again: the median counts, not what else happened then. No try, the first of
which finds nothing prepared, may take twice as long: two threads that compute count twice."""

_MOST_BYTES = 4 << 20
_ASK = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
_CHAT, _TEXT = "/v1/chat/completions", "/v1/completions"


def _body(chance: Random) -> tuple[str, bytes]:
    """A request that is as large as is read, or a little smaller, and mostly of one thing."""
    n_bytes = int(_MOST_BYTES * 10 ** -chance.choice((0.001, 0.3, 0.6, 1.0, 1.7, 2.5)))
    piece = chance.choice(
        ("<", "a", "ab ", "<|im_end|>", "\\n", "\\u00e9", "\\ud83d\\ude42", "\u6771", " ", "(", "<|", '\\"')
    )
    depth = chance.choice((1, 3, 60, 200))
    unit = chance.choice(
        (
            *('""', "0", "1.5", "[]", "{}", '{"a":{}}', "[" * depth + "]" * depth, '{"a":' * depth + "0" + "}" * depth),
            *('{"role":"user","content":"x"}', '{"role":"tool","content":"","tool_call_id":"a"}', f'"{piece * 30}"'),
            *('{"type":"text","text":"x"}', '{"type":"string"}', '{"const":"a"}', '{"maxItems":5}', '"array"', "null"),
        )
    )
    many = ",".join([unit] * (n_bytes // (len(unit.encode()) + 1)))
    names = ",".join(f'"p{n}":{unit}' for n in range(n_bytes // (len(unit.encode()) + 9)))
    text = piece * (n_bytes // len(piece.encode()))
    before = json.dumps(_ASK)[:-1]
    schema = before + ',"response_format":{"type":"json_schema","json_schema":{"name":"x","schema":%s}}}'
    path, made = chance.choice(
        (
            (_CHAT, f'{{"messages":[{many}],"max_tokens":2}}'),
            (_CHAT, f'{{"messages":[{{"role":"user","content":"{text}"}}],"max_tokens":2}}'),
            (_CHAT, f'{{"messages":[{{"role":"user","content":[{many}]}}],"max_tokens":2}}'),
            (_CHAT, f'{before},"{chance.choice(("metadata", "stop", "tools", "logit_bias", "user"))}":[{many}]}}'),
            (_CHAT, f'{before},"{chance.choice(("metadata", "logit_bias", "chat_template_kwargs"))}":{{{names}}}}}'),
            (_CHAT, f'{before},"grammar":"root ::= \\"{text.replace(chr(34), "")}\\""}}'),
            (_CHAT, schema % f'{{"enum":[{many}]}}'),
            (_CHAT, schema % f'{{"type":[{many}]}}'),
            (_CHAT, schema % f'{{"{chance.choice(("anyOf", "allOf", "oneOf", "prefixItems", "required"))}":[{many}]}}'),
            (_CHAT, schema % f'{{"{chance.choice(("properties", "$defs", "patternProperties"))}":{{{names}}}}}'),
            (_CHAT, schema % f'{{"pattern":"{text}"}}'),
            (_TEXT, f'{{"prompt":[{many}],"max_tokens":2}}'),
            (_TEXT, f'{{"prompt":"{text}","max_tokens":2}}'),
            ("/tokenize", f'{{"content":"{text}"}}'),
            ("/detokenize", f'{{"tokens":[{many}]}}'),
        )
    )
    return path, made.encode()


def _answered(port: int, path: str, body: bytes) -> int:
    """Return the status of the answer; 0 where the connection ended without one."""
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=120) as asking:
        try:
            asking.sendall(head.encode() + body)
            answer = b""
            while piece := asking.recv(65536):
                answer += piece
        except ConnectionError:
            return 0
    found = re.match(rb"HTTP/1\.1 (\d+)", answer)
    return int(found[1]) if found else 0


def _delay(ask: Callable[[], None]) -> tuple[float, float]:
    """Return the seconds of a wait in which this process computes, and those in which it does not.

    Other programs lengthen a wait by the clock, and not by the processor's time, which tells what an idle machine would
    take. Where two threads compute at once that is too much: then the clock tells.
    """
    began, used = time.monotonic(), time.process_time()
    ask()
    by_clock, computed = time.monotonic() - began, time.process_time() - used
    return min(by_clock, computed), max(0.0, by_clock - computed)


def _longest_delays(ask: Callable[[], None], prepare: Callable[[], None]) -> tuple[float, float]:
    """Return the longest of ``_delay`` that a client has who asks again and again while something is prepared."""
    preparing = threading.Thread(target=prepare)
    preparing.start()
    found = [_delay(ask)]
    while preparing.is_alive():
        found.append(_delay(ask))
    preparing.join()
    computing, standing = zip(*found, strict=True)
    return max(computing), max(standing)


def require_short_delays(ask: Callable[[], None], prepare: Callable[[], None], said: str) -> None:
    """Raise if a client who asks again and again waits too long while something is prepared."""
    alone = median(_delay(ask)[0] for _ in range(_TRIES))
    found = [_longest_delays(ask, prepare)]
    if found[0][0] - alone > _MOST_WAITED_S or found[0][1] > _MOST_STANDING_S:
        found += [_longest_delays(ask, prepare) for _ in range(_TRIES - 1)]
    computing, standing = zip(*found, strict=True)
    told = f"another client waited {computing} s, and {standing} s for nothing, beside {said}"
    assert median(computing) - alone <= _MOST_WAITED_S, told
    assert max(computing) - alone <= 2 * _MOST_WAITED_S, told
    assert median(standing) <= _MOST_STANDING_S, told


def heavy(number: int, _: Path, n_requests: int = 20) -> Callable[[], object]:
    """Requests that are costly to prepare, while another client asks for two tokens again and again."""

    def serve() -> None:
        with (
            load("demo", n_ctx=1024, n_threads=1) as model,
            ModelServer(model, ServerSettings(port=0, name="demo", log=lambda line: None)) as server,
        ):
            port = int(server.url.rpartition(":")[2])
            small = json.dumps(_ASK).encode()
            for place in range(n_requests):
                path, body = _body(Random(number * n_requests + place))
                said = f"request {place}, {len(body)} bytes, {path} {body[:90]!r}... {body[-60:]!r}"
                found: list[int] = []

                def ask() -> None:
                    status = _answered(port, _CHAT, small)
                    assert status == 200, f"{status} for another client beside {said}"  # noqa: B023

                ask()
                require_short_delays(ask, lambda: found.append(_answered(port, path, body)), said)  # noqa: B023
                assert found, f"no answer to {said}"
                for status in found:
                    assert status in range(200, 500) or status in (0, 503), f"{status} for {said}"

    return serve


def _in_two(work: Callable[[int], object]) -> None:
    """Do something in two processes at once, which must end without a word."""
    children = []
    for each in range(2):
        child = os.fork()
        if not child:
            code = 70
            try:
                work(each)
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    ended = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert ended == [0, 0], f"the two ended with {ended}"


def two_chats(number: int, folder: Path) -> Callable[[], object]:
    """Two chats that save in one file; whatever each has said is in a file at the end, and all files are whole."""
    place = folder / "chats"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    path = place / "two.chat"
    table = chat_table(end=1.0)
    letters = str.maketrans("0123", "abcd")

    def said(who: int, turn: int) -> str:
        return f"{who}{who}{turn // 4}{turn % 4}".translate(letters)

    def chat(who: int) -> None:
        chance = Random(number * 2 + who)
        model = chat_model(table, n_ctx=200)
        autosave = Autosave(path, on_notice=lambda sentence: None)
        time.sleep(chance.random() * 0.02)

        def loaded() -> ChatSession | None:
            try:
                return autosave.load(model, path, here=True)
            except FileNotFoundError:
                # There is none yet, or the other one has just moved it to begin another.
                return None

        session = loaded() or model.chat(seed=who, max_tokens=3)
        for turn in range(6):
            session.send(said(who, turn)).read()
            autosave.save(session)
            time.sleep(chance.random() * chance.choice((0, 0.004, 0.02)))
            if chance.random() < 0.15:
                session = loaded() or session
            elif chance.random() < 0.1:
                session = model.chat(seed=turn, max_tokens=3)
                autosave.start_new(session)
        autosave.save(session, at_the_end=True)

    def talk() -> None:
        _in_two(chat)
        kept: set[str] = set()
        for file in place.iterdir():
            if file.suffix == ".chat":
                with zipfile.ZipFile(file) as archive:
                    kept |= {
                        message["content"] for message in json.loads(archive.read("conversation.json"))["messages"]
                    }
            else:
                assert file.name.endswith(".lock"), f"{file.name} was left"
        lost = [(who, turn) for who in range(2) for turn in range(6) if said(who, turn) not in kept]
        assert not lost, f"in no file: {lost}"

    return talk


def two_loads(number: int, folder: Path) -> Callable[[], object]:
    """Two processes that load a model for the first time, one of which may be killed; all write the same text."""
    cache = folder / "records"
    shutil.rmtree(cache, ignore_errors=True)
    chance = Random(number)
    engine = chance.choice(("onnx", "llama"))
    delays = [chance.random() * chance.choice((0.0, 0.5, 2.0)) for _ in range(2)]
    killed_after = chance.choice((None, None, chance.random() * 3))

    def text() -> list[int]:
        given: dict[str, Any] = {"n_ctx": 256, "n_threads": 1, "engine": engine, "cache_dir": cache}
        with load("demo", **given) as model:
            reply = model.generate("Hello", max_tokens=8, seed=1, raw=True)
            reply.read()
            return list(reply.token_ids)

    def write(each: int) -> None:
        time.sleep(delays[each])
        (folder / f"text {each}").write_text(json.dumps(text()))

    def doomed() -> None:
        child = os.fork()
        if not child:
            try:
                text()
            finally:
                os._exit(0)
        assert killed_after is not None
        time.sleep(killed_after)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)

    def load_both() -> None:
        if killed_after is not None:
            doomed()
        _in_two(write)
        found = [json.loads((folder / f"text {each}").read_text()) for each in range(2)]
        assert found[0] == found[1] == text(), f"{found} and {text()}"

    return load_both
