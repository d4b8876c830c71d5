"""What a campaign attacks with, by number: each kind makes the case of a number, to be called.

A case ends by itself, by an error of ours that has been told in a line, or by leaving as a command does.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from beside import heavy, two_chats, two_loads
from chat_world import chat_model, chat_table
from commands import command as real_command
from damaged_families import damaged
from fake_hub import COMMIT, FAULTS, client, fake_hub
from family_templates import FAMILIES
from gguf_files import write_gguf
from head_files import write_head
from hostile_gguf import HostileGGUF, read_gguf
from json_schemas import SCHEMAS
from mutations import ODD, Mutations
from published_heads import PublishedHead, write_gguf_head, write_safetensors_head
from published_models import publish
from published_weights import read_weights
from renamed_models import renamed
from scarce_memory import PLENTY
from values import nested, numbers, tokenizer

from edge_spec import load
from edge_spec.chat import ChatSession
from edge_spec.cli import main as command
from edge_spec.errors import EdgeSpecError
from edge_spec.generation.prompts import render_chat
from edge_spec.library.finding import find
from edge_spec.library.pulling import pull
from edge_spec.library.wanted import wanted
from edge_spec.memory.pressure import PressureReading, PressureWatch
from edge_spec.models import inspect, resolve_family
from edge_spec.server.running import ModelServer
from edge_spec.server.settings import ServerSettings

__all__ = ["BUDGET", "KINDS", "Kind"]

BUDGET = 600 << 20
_SECONDS = 10.0

Case = Callable[[int, Path], Callable[[], object]]
_ASKED = ["-p", "Hello there", "--max-tokens", "3", "--seed", "1", "--threads", "1", "--memory", f"{BUDGET >> 20}MiB"]

_TEMPLATES = (
    "{% for m in messages %}{{ loop.index }}{{ m.role ~ ': ' ~ m.content[:20] }}|{% endfor %}",
    "{{ '%s is %5.1f and %d' % ('a', 2.25, 17) }} {{ '{} {:>4} {x}'.format('a', 7, x=1) }}",
    "{% set ns = namespace(n=0, l=[]) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% set ns.l = ns.l + [m] %}"
    "{% endfor %}{{ ns.n }}{{ ns.l|tojson(indent=2) }}",
    "{% macro f(a, b='x') %}<{{ a }}{{ b }}>{% endmacro %}{{ f(1) }}{{ messages|map(attribute='content')|join(',') }}",
    *FAMILIES.values(),
)
_GRAMMARS = (
    'root ::= [a-z ]{5,40} "."',
    'root ::= ("yes" | "no" | "may" "be"?) (" " root)?',
    'root ::= "(" root? ")" root? # nested\n',
    'root ::= item+ "\\n"\nitem ::= "- " [^\\n]{1,20} "\\n" | [0-9]+ "." (word ", ")* word\nword ::= [a-zäöü]+\n',
)
_TEXT = (
    "{{",
    "}}",
    "{%",
    "%}",
    "|",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    "*",
    "+",
    "?",
    "::=",
    '"',
    "\\",
    "**",
    "9" * 30,
    "\0",
)
_TEXT += (
    "range(10**9)",
    "loop",
    "|length",
    " * 99999",
    "\ud800",
    "{1,99999}",
    "[^]",
    "root",
    "\n",
    "(" * 300,
    "a" * 9999,
)


def _text(mutations: Mutations, text: str) -> str:
    """Return a text with pieces cut out, doubled and put in."""
    chance = mutations.random
    for _ in range(chance.choice((1, 2, 3, 6))):
        at, n = chance.randrange(len(text) + 1), chance.choice((1, 3, 20))
        kind = chance.random()
        if kind < 0.5:
            text = text[:at] + chance.choice(_TEXT) + text[at:]
        elif kind < 0.8:
            text = text[:at] + text[at + n :]
        else:
            text = text[:at] + text[at : at + 30] * chance.choice((2, 5, 40)) + text[at:]
    return text


def gguf(number: int, folder: Path) -> Callable[[], object]:
    """A model with some of what it says changed, run by one of the engines or planned."""
    base = folder / "sound.gguf"
    model = read_gguf(base if base.exists() else write_gguf(base)).change(number)
    path = str(model.write(folder / "changed.gguf"))
    chosen = (["--engine", "llama", "--raw"], ["--engine", "onnx"], ["--speculation", "ngram"])[number % 4 % 3]
    arguments = ["plan", path, *_ASKED[-2:]] if number % 4 == 3 else ["run", path, *_ASKED, *chosen]
    return lambda: command(arguments)


def family(number: int, folder: Path) -> Callable[[], object]:
    """A small model of any family with one setting or tensor changed, on each engine in turn."""
    return _loaded(damaged(number // 2, folder), ("llama", "onnx")[number % 2], folder)


def architecture(number: int, folder: Path) -> Callable[[], object]:
    """A small model of any family under the name of another architecture, on llama.cpp; all pairs, by number."""
    return _loaded(renamed(number, folder), "llama", folder)


def _loaded(model: HostileGGUF, engine: str, folder: Path) -> Callable[[], object]:
    """A few tokens of a model, all of them if it can be loaded."""
    path = model.write(folder / "changed.gguf")
    # The machine's memory may get scarce by what others do; what this holds is measured from outside.
    watch = PressureWatch(lambda: PressureReading(available_bytes=PLENTY), low_bytes=1)
    given: dict[str, Any] = {"n_ctx": 64, "n_threads": 1, "speculation": "off", "memory": BUDGET, "cache_dir": folder}

    def write() -> None:
        print(engine, *model.said, flush=True)
        with load(path, engine=engine, watch=watch, **given) as opened:
            reply = opened.generate("Hello there", max_tokens=4, seed=1, raw=True, ignore_eos=True)
            reply.read()
            assert len(reply.token_ids) == 4, f"{reply.finish_reason}, {reply.error}"

    return write


def head(number: int, folder: Path) -> Callable[[], object]:
    """A head, or a drafter, with some of what it says changed, for the demo."""
    target, base = inspect(resolve_family("demo").target), folder / "head.gguf"
    if not base.exists():
        write_head(base, target, np.arange(0, target.n_vocab, 2), (2, 4, 7))
    family = resolve_family("demo")
    is_head = number % 3 or family.draft is None
    changed = read_gguf(base if is_head else Path(str(family.draft))).change(number).write(folder / "changed.gguf")
    engine = "llama" if number % 3 == 0 and number % 2 else "onnx"
    return lambda: command(["run", "demo", "--draft", str(changed), "--engine", engine, *_ASKED])


def published_head(number: int, folder: Path) -> Callable[[], object]:
    """A head as published, in a GGUF or in safetensors, with some of what it says changed, for the demo."""
    target, base, changed = inspect(resolve_family("demo").target), folder / "eagle3", folder / "changed-eagle3"
    if not base.exists():
        head = PublishedHead(width=96, read=target.n_embd, n_vocab=target.n_vocab, layers=(2, 4, 8), ids=(5, 9, 700))
        head = replace(head, own=("output", "token_embd"), half_apart=True)
        write_safetensors_head(base, head)
        write_gguf_head(base / "head.gguf", target, head)
    mutations = Mutations(number)
    shutil.rmtree(changed, ignore_errors=True)
    shutil.copytree(base, changed)
    path = changed / ("head.gguf" if number % 2 else "model.safetensors")
    if number % 2:
        path = read_gguf(path).change(number).write(path)
    elif number % 4:
        settings = path.with_name("config.json")
        settings.write_text(json.dumps(mutations.of_json(json.loads(settings.read_bytes()))))
    else:
        path.write_bytes(mutations.of_bytes(path.read_bytes()))
    return lambda: command(["run", "demo", "--draft", str(path), "--engine", "onnx", *_ASKED])


def onnx(number: int, folder: Path) -> Callable[[], object]:
    """A published model with a byte or a value of one of its files changed."""
    base, changed = folder / "sound", folder / "changed"
    if not base.exists():
        publish(base, read_weights(Path(str(resolve_family("demo").draft))), "genai")
    mutations = Mutations(number)
    shutil.rmtree(changed, ignore_errors=True)
    shutil.copytree(base, changed)
    files = sorted(path for path in changed.iterdir() if path.suffix in (".json", ".onnx", ".jinja"))
    for path in mutations.random.sample(files, k=mutations.random.choice((1, 1, 2))):
        raw = path.read_bytes()
        if path.suffix == ".json" and mutations.random.random() < 0.8:
            path.write_text(json.dumps(mutations.of_json(json.loads(raw))))
        else:
            path.write_bytes(mutations.of_bytes(raw))
    return lambda: command(["plan", str(changed), *_ASKED[-2:]] if number % 4 == 3 else ["run", str(changed), *_ASKED])


def session(number: int, folder: Path) -> Callable[[], object]:
    """A conversation with values or bytes changed, loaded and continued."""
    good, bad = folder / "good.chat", folder / "bad.chat"
    model = chat_model(chat_table(end=1.0), n_ctx=200)
    if not good.exists():
        chat = model.chat(seed=2, max_tokens=12)
        chat.send("abc").read()
        chat.save(good)
    mutations = Mutations(number)
    if number % 3 == 0:
        bad.write_bytes(mutations.of_bytes(good.read_bytes()))
    else:
        with zipfile.ZipFile(good) as archive, zipfile.ZipFile(bad, "w") as made:
            for name in archive.namelist():
                content = archive.read(name)
                is_text = name.endswith(".json")
                made.writestr(name, json.dumps(mutations.of_json(json.loads(content))) if is_text else content)
    return lambda: ChatSession.load(model, bad).send("cab", max_tokens=2).read()


def template(number: int, folder: Path) -> Callable[[], object]:
    """A chat template with pieces changed, and messages of any shape."""
    mutations = Mutations(number)
    changed = _text(mutations, mutations.random.choice(_TEMPLATES))
    messages: Any = [{"role": "user", "content": "hi " * 20}, {"role": "assistant", "content": "x"}] * 2
    if number % 4 == 0:
        messages = [{**each, "content": mutations.random.choice(ODD)} for each in messages]
    return lambda: render_chat(changed, messages, bos="<s>", eos="</s>")


def _written(number: int, **asked: Any) -> Callable[[], object]:
    def write() -> None:
        with load("demo", speculation="off" if number % 2 else "ngram", n_ctx=256) as model:
            model.generate("x", max_tokens=4, **asked).read()

    return write


def grammar(number: int, folder: Path) -> Callable[[], object]:
    """A grammar with pieces changed, which a reply has to obey."""
    mutations = Mutations(number)
    return _written(number, grammar=_text(mutations, mutations.random.choice(_GRAMMARS)))


def schema(number: int, folder: Path) -> Callable[[], object]:
    """A JSON schema with values changed, which a reply has to obey."""
    mutations = Mutations(number)
    return _written(number, json_schema=mutations.of_json(mutations.random.choice([*SCHEMAS.values()])))


def hub(number: int, folder: Path) -> Callable[[], object]:
    """A hub that lies in what it lists, answers no JSON, or breaks off."""
    mutations = Mutations(number)
    chance = mutations.random
    listed = {
        "id": "org/tiny-GGUF",
        "sha": COMMIT,
        "siblings": [
            {"rfilename": f"tiny-Q{bits}_0.gguf", "size": 99, "blobId": "b", "lfs": {"sha256": "0" * 64, "size": 99}}
            for bits in (4, 8)
        ],
        "tags": [],
    }
    changed = json.dumps(mutations.of_json(listed)).encode()
    if number % 3 == 0:
        changed = mutations.of_bytes(changed)

    def ask() -> None:
        models = folder / "models"
        shutil.rmtree(models, ignore_errors=True)
        with fake_hub() as made:
            made.repositories = {"org/tiny-GGUF": {"tiny-Q4_0.gguf": b"GGUF" * 25, "config.json": b"{}"}}
            if number % 2:
                made.listing = (changed, {})
            faults = [chance.choice((*FAULTS, "", "")) for _ in range(12)]
            made.fault = lambda: faults.pop() if faults else ""
            asking = client(made)
            found = find(wanted("org/tiny-GGUF"), asking)
            pull(found, asking, models, {})

    return ask


def http(number: int, folder: Path) -> Callable[[], object]:
    """Requests to a server, of any shape; it answers each, never with 500, and goes on answering."""
    return _answered(lambda place: _request(Mutations(number * _AT_ONCE + place)))


def large_numbers(number: int, folder: Path) -> Callable[[], object]:
    """Requests to a server with numbers that are too large."""

    def request(place: int) -> bytes:
        body = json.dumps(numbers(number * _AT_ONCE + place)).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
        return head.encode() + body

    return _answered(request)


def _answered(request: Callable[[int], bytes]) -> Callable[[], object]:
    """Some requests to a server, by their places."""

    def serve() -> None:
        with (
            load("demo", n_ctx=256, n_threads=1) as model,
            ModelServer(model, ServerSettings(port=0, name="demo", log=lambda line: None)) as server,
        ):
            port = int(server.url.rpartition(":")[2])
            for place in range(_AT_ONCE):
                status = _status(port, request(place))
                if status not in range(200, 500) and status not in (0, 501, 503, 504, 505):
                    raise AssertionError(f"{status} for request {place}")
            if _status(port, b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n") != 200:
                raise AssertionError("it no longer answers")

    return serve


_AT_ONCE = 50
_BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "model": "demo",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}],
        "max_tokens": 2,
        "temperature": 0.5,
        "top_p": 0.9,
        "seed": 1,
        "stop": ["x"],
        "logit_bias": {"5": -1},
        "stream": False,
        "n": 1,
        "logprobs": True,
        "top_logprobs": 2,
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMAS["person"]}},
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    },
    "/v1/completions": {"model": "demo", "prompt": "Hello", "max_tokens": 2, "echo": False, "suffix": None},
    "/tokenize": {"content": "Hello", "add_special": True},
    "/detokenize": {"tokens": [5, 6]},
    "/apply-template": {"messages": [{"role": "user", "content": "Hello"}]},
    "/v1/messages": {
        "model": "demo",
        "max_tokens": 2,
        "system": [{"type": "text", "text": "Be brief."}],
        "messages": [
            {"role": "user", "content": "Hello"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hm.", "signature": ""},
                    {"type": "tool_use", "id": "a", "name": "f", "input": {"b": 1}},
                ],
            },
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "a", "content": "c", "is_error": True}],
            },
        ],
        "tools": [{"name": "f", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
        "thinking": {"type": "enabled", "budget_tokens": 9},
        "output_config": {"format": {"type": "json_schema", "schema": SCHEMAS["person"]}, "effort": "low"},
        "stop_sequences": ["x"],
        "logit_bias": {"5": -1},
        "stream": True,
    },
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]},
    "/api/chat": {
        "model": "demo",
        "messages": [
            {"role": "user", "content": "Hello"},
            {
                "role": "assistant",
                "thinking": "Hm.",
                "tool_calls": [{"function": {"name": "f", "arguments": {"b": 1}}}],
            },
            {"role": "tool", "tool_name": "f", "content": "c"},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        "format": SCHEMAS["person"],
        "options": {"num_predict": 2, "seed": 1, "stop": ["x"], "logit_bias": {"5": -1}, "num_ctx": 9},
        "think": "high",
        "logprobs": True,
        "top_logprobs": 2,
        "keep_alive": "5m",
        "stream": True,
    },
    "/api/generate": {"prompt": "Hello", "system": "Be brief.", "raw": False, "options": {"num_predict": 2}},
    "/api/show": {"model": "demo", "verbose": True},
}


def _request(mutations: Mutations) -> bytes:
    chance = mutations.random
    path = chance.choice(["/v1/chat/completions"] * 4 + [*_BODIES])
    given = dict(_BODIES[path])
    for name in ("response_format", "tools", "logprobs", "top_logprobs"):
        if chance.random() < 0.6:
            given.pop(name, None)
    body = json.dumps(mutations.of_json(given)).encode()
    if chance.random() < 0.15:
        body = mutations.of_bytes(body)
    said = {"Host": "127.0.0.1", "Content-Type": "application/json", "Connection": "close"}
    said["Content-Length"] = str(len(body))
    if chance.random() < 0.15:
        odd = ("-1", "1e9", "\x00", "a" * 9000, "chunked", "evil.example", "", "9" * 30, "gzip", "0x5", "text/plain")
        name = chance.choice([*said, "Transfer-Encoding", "Origin", "Authorization", "Content-Encoding", "Expect"])
        said[name] = chance.choice(odd)
    lines = "".join(f"{name}: {value}\r\n" for name, value in said.items())
    raw = f"{chance.choice(('POST', 'POST', 'POST', 'GET', 'PUT'))} {path} HTTP/1.1\r\n{lines}\r\n".encode() + body
    return mutations.of_bytes(raw, most=300) if chance.random() < 0.1 else raw


def _status(port: int, request: bytes) -> int:
    """Return the status of the answer to a request; 0 where the connection ended without one."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as asking:
        try:
            asking.sendall(request)
            asking.shutdown(socket.SHUT_WR)
            answer = b""
            while piece := asking.recv(65536):
                answer += piece
        except ConnectionError:
            return 0
    words = answer.split(b"\r\n", 1)[0].split()
    return int(words[1]) if len(words) > 1 else 0


@dataclass(frozen=True)
class Kind:
    """A kind of attack.

    Attributes:
        case: makes the case of a number.
        at_once: so many cases are tried in one process.
        inputs: how many inputs a case is.
    """

    case: Case
    at_once: int = 1
    inputs: int = 1

    def told(self, number: int, folder: Path) -> None:
        """Do what a case does, and tell its error as a command would.

        Raises:
            AssertionError: it computes for more than ten seconds, or its error more than a line.
        """
        began = sum(os.times()[:4])
        try:
            self.case(number, folder)()
        except EdgeSpecError as error:
            assert len(str(error).splitlines()) == 1, f"several lines: {error}"
            print(f"error: {error}", file=sys.stderr)
            sys.exit(1)
        finally:
            # Of processes that it has started as well.
            assert sum(os.times()[:4]) - began < _SECONDS * self.inputs, "more than ten seconds"


KINDS = {
    "gguf": Kind(gguf),
    "family": Kind(family, at_once=5),
    "architecture": Kind(architecture, at_once=10),
    "head": Kind(head),
    "published head": Kind(published_head),
    "onnx": Kind(onnx),
    "session": Kind(session, at_once=25),
    "template": Kind(template, at_once=25),
    "nested": Kind(nested, at_once=25),
    "tokenizer": Kind(tokenizer),
    "grammar": Kind(grammar, at_once=10),
    "schema": Kind(schema, at_once=10),
    "hub": Kind(hub, at_once=10),
    "http": Kind(http, inputs=_AT_ONCE),
    "numbers": Kind(large_numbers, inputs=_AT_ONCE),
    "heavy": Kind(heavy, inputs=20),
    "two chats": Kind(two_chats, at_once=10),
    "two loads": Kind(two_loads, inputs=3),
    "command": Kind(real_command),
}
