"""Seconds to the first token of a turn, by length of the conversation before it.

    python benchmarks/turn_latency.py [--history 200,800,3000] [--rounds 5] [--engine llama] [--threads 2]

On a model of 0.1 billion parameters with random weights. The new message is always the same, so the times should be as
well, apart from attention over a longer past. Beside them is the time when the whole conversation is read again.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from time import perf_counter

from model_shapes import SHAPES, write_shape

import edge_spec

TEMPLATE = "{% for m in messages %}\n{{ m.role }}: {{ m.content }}</s>{% endfor %}\nassistant:"
NEW = "What about that?"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--history", default="200,800,3000")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--engine", choices=("llama", "onnx"), default="llama")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    lengths = [int(text) for text in arguments.history.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        path = write_shape(Path(folder) / "model.gguf", SHAPES["llama-0.1b"], "Q4_0", chat_template=TEMPLATE)
        with edge_spec.load(
            path,
            engine=arguments.engine,
            speculation="off",
            n_ctx=max(lengths) + 600,
            n_threads=arguments.threads,
            cache_dir=Path(folder),
        ) as model:
            seconds: dict[int, list[float]] = {length: [] for length in lengths}
            again: dict[int, list[float]] = {length: [] for length in lengths}
            sessions = {length: model.chat(seed=1, max_tokens=2, ignore_eos=True) for length in lengths}
            for length, session in sessions.items():
                session.send("x" * (length - 30)).read()
            for _ in range(arguments.rounds):
                for length, session in sessions.items():
                    # Resumes the session's caches, if another session was used in between.
                    session.send(NEW).read()
                    session.undo()
                    seconds[length].append(_first_token_s(session))
                    session.undo()
                    session.set_system(None)  # forgets what is cached
                    again[length].append(_first_token_s(session))
                    session.undo()
            for length in lengths:
                print(
                    f"{length:6} tokens before: {statistics.median(seconds[length]) * 1e3:8.1f} ms to the first token, "
                    f"{statistics.median(again[length]) * 1e3:8.1f} ms if everything is read again"
                )


def _first_token_s(session: edge_spec.ChatSession) -> float:
    start = perf_counter()
    reply = session.send(NEW)
    while reply.statistics.tokens == 0:
        next(reply, None)
    seconds = perf_counter() - start
    reply.close()
    return seconds


if __name__ == "__main__":
    main()
