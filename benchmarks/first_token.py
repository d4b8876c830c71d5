"""Seconds to the first token of the next turn: a client without a state against a conversation that keeps its caches.

    python benchmarks/first_token.py [--history 800,3000] [--rounds 9] [--engine llama] [--threads 2] [--model PATH]

For each length of history a conversation is held twice: by ``ChatSession.send``, which keeps its caches, and by a
client that sends all messages over HTTP to a server of the same model (streaming, to the first piece of text). Rounds
of the two alternate, and both write the same text, or the script stops. Another conversation comes in between each
time, so that caches are suspended and resumed as they are where several people use a model. Each round asks another
question, of both alike, so that no cache holds it already. Printed are medians in milliseconds, their ratio (the aim is
at most 1.3), and what a client waits whose history is read from the start.
Without ``--model`` it is a model of 0.1 billion parameters with random weights. Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import httpx2
from model_shapes import SHAPES, write_shape

import edge_spec
from edge_spec.server.running import ModelServer
from edge_spec.server.settings import ServerSettings

TEMPLATE = "{% for m in messages %}\n{{ m.role }}: {{ m.content }}</s>{% endfor %}\nassistant:"
NEW = "{} is enough. What about that?"
ASKED: dict[str, Any] = {"seed": 1, "max_tokens": 4, "ignore_eos": True}


@dataclass
class Seconds:
    """Times to the first piece of text at one length of history."""

    conversation: list[float] = field(default_factory=list)
    client: list[float] = field(default_factory=list)
    from_the_start: list[float] = field(default_factory=list)

    def row(self, length: int) -> str:
        """Medians, and the ratio that matters."""
        own, wire, whole = (
            statistics.median(times) * 1e3 for times in (self.conversation, self.client, self.from_the_start)
        )
        return f"{length:7} {own:16.1f} {wire:12.1f} {wire / own:7.2f} {whole:18.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--history", default="800,3000")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--engine", choices=("llama", "onnx"), default="llama")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--model", type=Path)
    arguments = parser.parse_args()
    lengths = [int(text) for text in arguments.history.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.model or write_shape(
            Path(folder) / "model.gguf", SHAPES["llama-0.1b"], "Q4_0", chat_template=TEMPLATE
        )
        with (
            edge_spec.load(
                path,
                engine=arguments.engine,
                speculation="off",
                n_ctx=max(lengths) + 600,
                n_threads=arguments.threads,
                cache_dir=Path(folder),
            ) as model,
            ModelServer(model, ServerSettings(port=0, name="model")) as server,
            httpx2.Client(base_url=server.url, timeout=600) as client,
        ):
            print("history  conversation/ms    client/ms   ratio  from the start/ms")
            for length in lengths:
                print(measured(model, client, length, arguments.rounds).row(length))


def measured(model: edge_spec.TextModel, client: httpx2.Client, length: int, rounds: int) -> Seconds:
    """The times at one length of history."""
    found = Seconds()
    # Ordinary words: the client's text has to be cut into the tokens that the model wrote.
    lines = [
        f"In the year {1500 + number} the harvest was good, and the village sold wheat."
        for number in range(length // 8)
    ]
    while len(model.prompt_of([{"role": "user", "content": (question := " ".join(lines))}])) > length:
        lines.pop()
    session, other = model.chat(**ASKED), model.chat(**ASKED)
    session.send(question).read()
    messages = [{"role": message.role, "content": message.content} for message in session.messages]
    # The server's own history: it has answered the first question itself.
    _post(client, messages[:1])
    for number in range(rounds):
        other.send(f"{number} is a number.").read()
        new = NEW.format(number)
        own, text = _of_conversation(session, new)
        found.conversation.append(own)
        session.undo()
        other.undo()
        other.send(f"{number} is a number.").read()
        seconds, same = _post(client, [*messages, {"role": "user", "content": new}])
        if same != text:
            raise SystemExit(f"the client got {same!r}, the conversation {text!r}")
        found.client.append(seconds)
        changed = [{"role": "system", "content": f"You are number {number}."}, *messages]
        found.from_the_start.append(_post(client, [*changed, {"role": "user", "content": new}])[0])
        other.undo()
    return found


def _of_conversation(session: edge_spec.ChatSession, new: str) -> tuple[float, str]:
    start = perf_counter()
    reply = session.send(new)
    next(reply, None)
    seconds = perf_counter() - start
    return seconds, reply.read()


def _post(client: httpx2.Client, messages: list[dict[str, str]]) -> tuple[float, str]:
    """Seconds to the first piece of text, and the whole text."""
    seconds, text = 0.0, ""
    start = perf_counter()
    body = {"messages": messages, "stream": True, **ASKED}
    with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                raise SystemExit(event["error"]["message"])
            piece = "".join(choice["delta"].get("content") or "" for choice in event["choices"])
            if piece and not text:
                seconds = perf_counter() - start
            text += piece
    return seconds, text


if __name__ == "__main__":
    main()
