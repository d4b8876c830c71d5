"""Seconds until the first token of a turn, by how much was said before.

    python benchmarks/turn_latency.py [--history 200,800,3000] [--rounds 5] [--engine llama] [--threads 2]

On a model of 0.1 billion parameters with random weights. The new text is the same each time, so the seconds should
be as well, but for what attention adds over a longer past; beside them stands what reading everything again takes.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from time import perf_counter

from model_shapes import SHAPES, write_shape

from edge_spec import TextModel
from edge_spec.engines.llama import LlamaSettings, LlamaWeights, open_llama
from edge_spec.engines.onnx import OnnxSettings, open_onnx
from edge_spec.engines.onnx.transcription import transcribe
from edge_spec.models import inspect
from edge_spec.speculation.drafters.plain import NoDrafter
from edge_spec.speculation.loop import Speculator
from edge_spec.speculation.policy import FixedPolicy

TEMPLATE = "{% for m in messages %}\n{{ m.role }}: {{ m.content }}</s>{% endfor %}\nassistant:"
NEW = "What about that?"


def opened(engine: str, path: Path, n_ctx: int, n_threads: int) -> TextModel:
    file, weights = inspect(path), LlamaWeights(path, vocab_only=engine != "llama")
    if engine == "llama":
        model = open_llama(weights, LlamaSettings(n_ctx=n_ctx, n_threads=n_threads), file="x", cache_dir=None)[0]
    else:
        source = transcribe(file, path.parent)
        model = open_onnx(source, OnnxSettings(n_ctx=n_ctx, n_threads=n_threads), file="x", cache_dir=None)[0]
    speculator = Speculator(model, NoDrafter())
    return TextModel(speculator, lambda: FixedPolicy(0), weights, mode="off", chat_template=TEMPLATE)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--history", default="200,800,3000")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--engine", choices=("llama", "onnx"), default="llama")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    lengths = [int(text) for text in arguments.history.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        path = write_shape(Path(folder) / "model.gguf", SHAPES["llama-0.1b"], "Q4_0")
        with opened(arguments.engine, path, max(lengths) + 600, arguments.threads) as model:
            seconds: dict[int, list[float]] = {length: [] for length in lengths}
            again: dict[int, list[float]] = {length: [] for length in lengths}
            sessions = {length: model.chat(seed=1, max_tokens=2, ignore_eos=True) for length in lengths}
            for length, session in sessions.items():
                session.send("x" * (length - 30)).read()
            for _ in range(arguments.rounds):
                for length, session in sessions.items():
                    # Brings the caches back, if another session was at the models.
                    session.send(NEW).read()
                    session.undo()
                    seconds[length].append(_first_token_s(session))
                    session.undo()
                    session.set_system(None)  # forgets what was read
                    again[length].append(_first_token_s(session))
                    session.undo()
            for length in lengths:
                print(
                    f"{length:6} tokens before: {statistics.median(seconds[length]) * 1e3:8.1f} ms to the first token, "
                    f"{statistics.median(again[length]) * 1e3:8.1f} ms when all is read again"
                )


def _first_token_s(session: object) -> float:
    start = perf_counter()
    reply = session.send(NEW)  # type: ignore[attr-defined]
    while reply.statistics.tokens == 0:
        next(reply, None)
    seconds = perf_counter() - start
    reply.close()
    return seconds


if __name__ == "__main__":
    main()
