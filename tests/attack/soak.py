"""Write for long, as programs do, and watch what the process holds: memory, files, threads.

Generations, chats, schemas, several clients at once, cancels, conversations that push each other out of memory. The
curve is written as JSON, and with ``--plot`` as a picture, which needs matplotlib.

    python tests/attack/soak.py --tokens 100000 --json soak.json --plot docs/soak.svg
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from json_schemas import SCHEMAS

import edge_spec
from edge_spec import ChatSession, TextModel
from edge_spec.memory.usage import usage

__all__ = ["growth", "soak"]

_EVERY = 1000
_TEXTS = ("Tell me a story about a dog.", "Why is the sky blue?", "Hi!", "Name three animals. " * 6)

Point = dict[str, int]


def soak(engine: str, n_tokens: int, *, seed: int = 1) -> Iterator[Point]:
    """Write so many tokens on an engine; yields what is held, about every thousand tokens."""
    chance, told = random.Random(seed), 0
    with edge_spec.load("demo", engine=engine, n_ctx=512, n_threads=1) as model:
        chats: list[ChatSession] = []
        while told < n_tokens:
            reached = told + _EVERY
            while told < reached:
                told += _some(model, chats, chance)
            gc.collect()
            yield {
                "tokens": told,
                "bytes": usage().resident_bytes,
                "files": len([*Path("/proc/self/fd").iterdir()]),
                "threads": len([*Path("/proc/self/task").iterdir()]),
            }


def _some(model: TextModel, chats: list[ChatSession], chance: random.Random) -> int:
    """Do one of the things that programs do; returns how many tokens were written."""
    asked: dict[str, Any] = {"max_tokens": chance.choice((8, 40, 100)), "seed": chance.randrange(1 << 30)}
    what, text = chance.random(), chance.choice(_TEXTS)
    if what < 0.25:
        replies = [model.generate(text, **asked)]
    elif what < 0.35:
        replies = [model.generate(text, json_schema=SCHEMAS[chance.choice([*SCHEMAS])], **asked)]
    elif what < 0.5:
        group = model.generate(text, n=chance.choice((2, 5)), **asked)
        group.read()
        replies = [*group.answers]
    elif what < 0.65:
        replies = [model.generate(each, **asked) for each in _TEXTS]
        clients = [threading.Thread(target=reply.read) for reply in replies]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
    elif what < 0.75:
        replies = [model.generate(text, **asked)]
        next(replies[0], None)
        replies[0].cancel()
    else:
        # A dozen conversations do not fit the cells at once; the oldest is forgotten.
        if len(chats) < 12 or chance.random() < 0.1:
            chats.append(model.chat(seed=1))
            for old in chats[:-12]:
                old.close()
            del chats[:-12]
        replies = [chance.choice(chats).send(text, **asked)]
    for reply in replies:
        reply.read()
    if chance.random() < 0.2:
        model.check_memory()
    return sum(len(reply.token_ids) for reply in replies)


def growth(points: list[Point]) -> float:
    """Return by how many bytes per 10,000 tokens memory grows over the last half: the slope of a line through it."""
    half = points[len(points) // 2 :]
    x = [point["tokens"] / 10_000 for point in half]
    y = [point["bytes"] for point in half]
    middle, level = sum(x) / len(x), sum(y) / len(y)
    return sum((a - middle) * (b - level) for a, b in zip(x, y, strict=True)) / sum((a - middle) ** 2 for a in x)


def plot(curves: dict[str, list[Point]], path: Path) -> None:
    """Draw memory by tokens."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3.2), layout="constrained")
    for engine, points in curves.items():
        axes.plot([each["tokens"] for each in points], [each["bytes"] / 2**20 for each in points], label=engine)
    axes.set(xlabel="tokens written", ylabel="resident memory, MiB", ylim=(0, None))
    axes.legend()
    figure.savefig(path, metadata={"Date": None})


def main() -> int:
    """Soak as the command says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=100_000, help="on each engine")
    parser.add_argument("--engine", action="append", choices=("onnx", "llama"))
    parser.add_argument("--json", type=Path, help="add the curve of each engine to this file")
    parser.add_argument("--plot", type=Path)
    given = parser.parse_args()
    curves = json.loads(given.json.read_text()) if given.json and given.json.exists() else {}
    held = True
    for engine in given.engine or ("onnx", "llama"):
        points = curves[engine] = [*soak(engine, given.tokens)]
        last = points[len(points) // 2 :]
        same = all(len({point[name] for point in last}) == 1 for name in ("files", "threads"))
        print(
            f"{engine}: {points[-1]['tokens']} tokens, {growth(points) / 2**20:.2f} MiB per 10,000 over the last half, "
            f"files and threads {'equal' if same else 'differ'}",
            flush=True,
        )
        held = held and same and growth(points) < 1 << 20
        if given.json:
            given.json.write_text(json.dumps(curves))
    if given.plot:
        plot(curves, given.plot)
    return int(not held)


if __name__ == "__main__":
    sys.exit(main())
