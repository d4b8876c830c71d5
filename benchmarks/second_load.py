"""Whether ``auto`` keeps up with plain decoding while another program computes on one core, and how soon it adapts.

    python benchmarks/second_load.py [MODEL] [--draft FILE] [--intermediate FILE] [--engine llama] [--seconds 20]

Both ways are open at once and write short replies to the same prompts in turns, each beginning as often as the other:
some turns alone, then for ``--seconds`` beside a process that keeps one core busy, then alone again. Printed for each
phase: median tokens per second of both, the median ratio of their turns, and the ratio of the first turn after the
change. Rounds say how long that turn was.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from time import monotonic
from typing import Any

import edge_spec

_PROMPTS = (
    "Give me three tips for sleeping better.",
    "Write a short letter to a friend who has moved to the sea.",
    "What should a visitor of a small harbour town see?",
    "Explain to a child why it rains.",
)
_BUSY = "while True: pass"


@contextmanager
def _beside_another_program() -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", _BUSY])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _turn(model: edge_spec.TextModel, number: int, tokens: int, temperature: float) -> tuple[list[int], float, int]:
    """Token ids, tokens per second of decoding, and rounds."""
    prompt = _PROMPTS[number % len(_PROMPTS)]
    reply = model.generate(prompt, seed=number, max_tokens=tokens, temperature=temperature, ignore_eos=True)
    reply.read()
    return reply.token_ids, len(reply.token_ids) / reply.statistics.decode_s, reply.statistics.rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--draft")
    parser.add_argument("--intermediate")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each phase")
    parser.add_argument("--tokens", type=int, default=48, help="of each reply")
    parser.add_argument("--temperature", type=float, default=0.8)
    asked = parser.parse_args()
    common: dict[str, Any] = {
        **{name: getattr(asked, name) for name in ("draft", "intermediate") if getattr(asked, name)},
        "engine": asked.engine,
        "n_ctx": 512,
    }
    with (
        edge_spec.load(asked.model, speculation="off", **common) as plain,
        edge_spec.load(asked.model, speculation="auto", **common) as auto,
    ):
        number = 0

        def turns(seconds: float) -> list[tuple[float, float, int]]:
            """Speeds of both in turns, and rounds of ``auto``."""
            nonlocal number
            found: list[tuple[float, float, int]] = []
            until = monotonic() + seconds
            while monotonic() < until or not found:
                number += 1
                order = (plain, auto) if number % 2 else (auto, plain)
                turns = {id(each): _turn(each, number, asked.tokens, asked.temperature) for each in order}
                if turns[id(plain)][0] != turns[id(auto)][0]:
                    raise SystemExit("the texts differ")
                found.append((turns[id(plain)][1], turns[id(auto)][1], turns[id(auto)][2]))
            return found

        turns(asked.seconds / 2)
        print(f"{'phase':8} {'turns':>5} {'plain/s':>8} {'auto/s':>8} {'ratio':>6}  first turn")
        _show("alone", turns(asked.seconds))
        with _beside_another_program():
            _show("beside", turns(asked.seconds))
        _show("alone", turns(asked.seconds))


def _show(phase: str, found: list[tuple[float, float, int]]) -> None:
    plain, auto, _ = (median(values) for values in zip(*found, strict=True))
    ratio = median(fast / slow for slow, fast, _ in found)
    first, rounds = found[0][1] / found[0][0], found[0][2]
    print(f"{phase:8} {len(found):5} {plain:8.1f} {auto:8.1f} {ratio:6.2f}  {first:.2f} in {rounds} rounds")


if __name__ == "__main__":
    main()
