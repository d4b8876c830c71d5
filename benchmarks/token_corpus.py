"""A corpus of replies by public names only: ``load``, ``generate``, ``chat``, HTTP and the command.

``compare_tokens.py`` writes it with two versions and compares them. Each part yields what it is called and what came
out: token ids where the interface tells them, texts elsewhere.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import edge_spec
from edge_spec.loading import possible_modes

__all__ = ["PARTS", "corpus"]

Found = Iterator[tuple[str, Any]]

_PROMPTS = (
    "Tell me a short story about a dog who is afraid of the rain.",
    "Can you book a table for four people in an Italian restaurant on Friday?",
)
_SAMPLERS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "defaults": {},
    "filters": {"top_k": 7, "top_p": 0.9, "min_p": 0.02, "typical_p": 0.9, "temperature": 1.2},
    "penalties": {"repeat_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": 0.3, "dry_multiplier": 0.9},
    "xtc": {"xtc_probability": 0.6, "xtc_threshold": 0.05},
    "mirostat": {"mirostat": 2, "mirostat_tau": 3.0},
    "grammar": {"grammar": 'root ::= "The " ("dog" | "cat") " " [a-z]{3,9} (" and " [a-z]{3,9})? "."'},
}
_QUESTIONS = (
    "Hello, who are you?",
    "Do you like dogs, or rather cats?",
    "What did you eat this morning?",
    "Where do you live?",
    "Tell me about the sea.",
    "And what comes after that?",
    "Why?",
)
_SHORT = 192
"""A context that a conversation of a few turns outgrows."""

_START_S = 120.0


def corpus(model: str, *, engine: str, parts: Iterable[str], draft: Mapping[str, Any], max_tokens: int) -> Found:
    """Yield the names and the results of every case on one model and engine.

    Args:
        model: a name or an absolute path.
        parts: of ``PARTS``.
        draft: options of ``load`` that name smaller models.
        max_tokens: length of a reply.
    """
    modes = dict.fromkeys(("off", "auto", *possible_modes(model, engine=engine, **draft)))
    loaded = {"engine": engine, "n_threads": 1, "cache_dir": "cache", **draft}
    for part in parts:
        for mode in modes if part in _IN_EVERY_MODE else ("off", "auto"):
            try:
                for name, found in PARTS[part](model, {**loaded, "speculation": mode}, max_tokens):
                    yield f"{engine}, {mode}, {part}: {name}", found
            except edge_spec.EdgeSpecError as error:
                # A refusal is compared as well.
                yield f"{engine}, {mode}, {part}: refused", str(error)


def _replies(model: str, loaded: Mapping[str, Any], max_tokens: int) -> Found:
    """Replies to one prompt after the other, with every sampler."""
    with edge_spec.load(model, n_ctx=512, **loaded) as opened:
        yield "profile", [asdict(opened.profile), opened.identity]
        for sampler, options in _SAMPLERS.items():
            for number, prompt in enumerate(_PROMPTS):
                reply = opened.generate(prompt, seed=number + 1, max_tokens=max_tokens, **options)
                yield f"{sampler}, prompt {number + 1}", _ended(reply)


def _together(model: str, loaded: Mapping[str, Any], max_tokens: int) -> Found:
    """Several replies at once, to prompts that begin alike and otherwise; one of them cancelled."""
    with edge_spec.load(model, n_ctx=256, texts=16, **loaded) as opened:
        for n in (2, 5, 16):
            prompts = [f"{_PROMPTS[0]} It is called {name}." for name in "ABCDEFGHIJKLMNOP"[: n // 2]]
            prompts += islice((*_QUESTIONS, *_PROMPTS, *_QUESTIONS), n - len(prompts))
            replies = opened.generate_many(prompts, seed=n, max_tokens=max_tokens // 2)
            replies.read()
            for number, reply in enumerate(replies.answers):
                yield f"{n} prompts, {number}", _ended(reply)
        answers = opened.generate(_PROMPTS[1], n=4, seed=5, max_tokens=max_tokens // 2)
        answers.read()
        for number, reply in enumerate(answers.answers):
            yield f"4 answers, {number}", _ended(reply)
        rest = opened.generate_many(_QUESTIONS[:3], seed=6, max_tokens=max_tokens // 2)
        for _, (number, _) in zip(range(4), rest, strict=False):
            if number == 1:
                rest.cancel(1)
        rest.read()
        for number in (0, 2):
            yield f"beside a cancelled one, {number}", _ended(rest.answers[number])


def _conversations(model: str, loaded: Mapping[str, Any], max_tokens: int) -> Found:
    """A conversation that outgrows its context, is edited, retried, undone, continued, saved, loaded and cancelled."""
    folder = Path(tempfile.mkdtemp(dir="."))
    with edge_spec.load(model, n_ctx=_SHORT, **loaded) as opened:
        chat = opened.chat("You are a friend.", seed=3, max_tokens=max_tokens // 2)
        for number, question in enumerate(_QUESTIONS[:4]):
            yield f"turn {number}", _ended(chat.send(question))
        yield "retried", _ended(chat.retry())
        yield "edited", _ended(chat.edit(_QUESTIONS[4]))
        chat.undo()
        yield "after undo", _ended(chat.send(_QUESTIONS[5]))
        cut = chat.send(_QUESTIONS[6])
        for piece in cut:
            if piece:
                break
        cut.cancel()
        cut.read()
        # How far it came before it was cancelled is a matter of rounds; what it wrote is the beginning of the reply.
        chat.undo()
        yield "after a cancelled one", _ended(chat.send(_QUESTIONS[6]))
        chat.save(folder / "with.chat")
        chat.save(folder / "without.chat", caches=False)
        yield "goes on", _ended(chat.send(_QUESTIONS[1]))
        yield "loaded", _ended(edge_spec.ChatSession.load(opened, folder / "with.chat").send(_QUESTIONS[1]))
    with edge_spec.load(model, n_ctx=_SHORT, **loaded) as opened:
        yield "loaded later", _ended(edge_spec.ChatSession.load(opened, folder / "with.chat").send(_QUESTIONS[1]))
        again = edge_spec.ChatSession.load(opened, folder / "without.chat")
        yield "loaded without caches", _ended(again.send(_QUESTIONS[1], max_tokens=3))
        yield "continued", _ended(again.continue_answer(max_tokens=8))


def _turns(model: str, loaded: Mapping[str, Any], max_tokens: int) -> Found:
    """Conversations by turns, more than have cells at a time, and clients that send whole conversations."""
    with edge_spec.load(model, n_ctx=256, **loaded) as opened:
        chats = [opened.chat(seed=number, max_tokens=max_tokens // 4) for number in range(6)]
        for turn in range(3):
            for number, chat in enumerate(chats):
                question = _QUESTIONS[(turn + number) % len(_QUESTIONS)]
                yield f"conversation {number}, turn {turn}", _ended(chat.send(question))
        messages: list[dict[str, str]] = []
        for turn, question in enumerate(_QUESTIONS[:3]):
            messages.append({"role": "user", "content": question})
            reply = opened.generate(messages, seed=9, max_tokens=max_tokens // 4, reuse=True)
            yield f"whole conversation, turn {turn}", _ended(reply)
            messages.append({"role": "assistant", "content": reply.text})


def _http(model: str, loaded: Mapping[str, Any], max_tokens: int) -> Found:
    """Requests one by one and side by side, streamed and whole."""
    with _served(model, loaded) as ask:
        body = {"max_tokens": max_tokens // 2, "seed": 4}
        yield "completion", ask("completions", {**body, "prompt": _PROMPTS[0], "logprobs": 2})
        yield "chat", ask("chat/completions", {**body, "messages": [{"role": "user", "content": _PROMPTS[1]}]})
        schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}}, "required": ["name"]}
        form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
        asked = {**body, "messages": [{"role": "user", "content": "Name a dog."}], "response_format": form}
        yield "schema", ask("chat/completions", asked)
        bodies = [
            {**body, "messages": [{"role": "user", "content": question}], "stream": number % 2 == 1}
            for number, question in enumerate(_QUESTIONS)
        ]
        with ThreadPoolExecutor(len(bodies)) as threads:
            for number, found in enumerate(threads.map(lambda each: ask("chat/completions", each), bodies)):
                yield f"side by side, {number}", found


def _command(model: str, loaded: Mapping[str, Any], max_tokens: int) -> Found:
    """The command's own options, and a pipe into the chat."""
    options = [*_options(loaded), "--ctx", "256"]
    run = [sys.executable, "-P", "-m", "edge_spec", "run", model, *options, "--json", "--seed", "8"]
    shown = _output([*run, "-n", str(max_tokens // 2), "-p", _PROMPTS[0]])
    yield "run", [_told(json.loads(line)) for line in shown.splitlines() if line.startswith("{")]
    shown = _output([*run, "-n", str(max_tokens // 4), "--answers", "3", "-p", _PROMPTS[1]])
    yield "answers", [_told(json.loads(line)) for line in shown.splitlines() if line.startswith("{")]
    chat = [sys.executable, "-P", "-m", "edge_spec", "chat", model, *options, "--seed", "8", "-n", str(max_tokens // 4)]
    yield "chat", _output(chat, "\n".join(_QUESTIONS[:3]))


PARTS: dict[str, Callable[[str, Mapping[str, Any], int], Found]] = {
    "replies": _replies,
    "together": _together,
    "conversations": _conversations,
    "turns": _turns,
    "http": _http,
    "command": _command,
}
"""By name, in the order in which they are written."""

_IN_EVERY_MODE = ("replies", "together", "conversations")


def _ended(reply: Any) -> list[Any]:
    """Read a reply to its end; returns its tokens and how it ended."""
    reply.read()
    return [list(reply.token_ids), str(reply.finish_reason)]


def _told(record: dict[str, Any]) -> Any:
    """Return the parts of a record that hold no time."""
    return {name: record.get(name) for name in ("text", "token_ids", "tokens", "finish_reason", "identity", "profile")}


def _options(loaded: Mapping[str, Any]) -> list[str]:
    names = {"engine": "--engine", "speculation": "--speculation", "n_threads": "--threads", "cache_dir": "--cache-dir"}
    names |= {"draft": "--draft", "intermediate": "--intermediate"}
    return [part for name, value in loaded.items() for part in (names[name], str(value))]


def _output(command: list[str], text: str = "") -> str:
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    return done.stdout or f"exit {done.returncode}: {done.stderr.splitlines()[-1:]}"


@contextmanager
def _served(model: str, loaded: Mapping[str, Any]) -> Iterator[Callable[[str, Mapping[str, Any]], Any]]:
    """A server of the installed version on a free port."""
    command = [sys.executable, "-P", "-m", "edge_spec", "serve", model, *_options(loaded), "--ctx", "256"]
    with tempfile.TemporaryFile("w+") as log:
        server = subprocess.Popen([*command, "--port", "0"], stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        try:
            address = _address(server, log)
            yield lambda path, body: _asked(f"{address}/v1/{path}", body)
        finally:
            server.terminate()
            server.wait()


def _address(server: subprocess.Popen[bytes], log: Any) -> str:
    """Wait until a server says where it listens."""
    began = time.monotonic()
    while time.monotonic() - began < _START_S and server.poll() is None:
        log.seek(0)
        for word in log.read().split():
            if word.startswith("http://"):
                address = str(word.partition("/v1")[0].rstrip("/.,"))
                with suppress(urllib.error.URLError):
                    urllib.request.urlopen(f"{address}/health").read()
                    return address
        time.sleep(0.1)
    log.seek(0)
    # No case of the corpus: two versions that both fail to start would be equal.
    raise RuntimeError(f"no server: {log.read()[-300:]}")


def _asked(url: str, body: Mapping[str, Any]) -> Any:
    """Return what was written, without names and times."""
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}, method="POST"
    )
    try:
        with urllib.request.urlopen(request) as response:
            said = response.read().decode()
    except urllib.error.HTTPError as error:
        return [error.code, error.read().decode()]
    if not body.get("stream"):
        return [_choice(each) for each in json.loads(said)["choices"]]
    parts = [line[6:] for line in said.splitlines() if line.startswith("data: {")]
    choices = [each for part in parts for each in json.loads(part).get("choices", ())]
    return "".join(each["delta"].get("content") or "" for each in choices)


def _choice(choice: Mapping[str, Any]) -> Any:
    return {name: value for name, value in choice.items() if name in ("text", "message", "logprobs", "finish_reason")}
