"""Tokens per second of several answers written together, and of the same answers one after the other.

    python benchmarks/several_texts.py [MODEL [--answers 1,2,4,8,16] [--tokens 128] [--rounds 5] [--temperature 0.8]]

Both sides decode plainly, on ONNX Runtime, the same answers of the same number of tokens (nothing ends early), in
turns, each beginning as often as the other; what is printed is the median of the rounds and the range of the ratio.
Reading the prompt is not counted on either side. The tokens are compared, and a difference is an error.
"""

from __future__ import annotations

import argparse
from statistics import median
from time import perf_counter

import edge_spec

_PROMPT = "Tell me three things that a visitor of a small harbour town should see."


def _together(model: edge_spec.TextModel, n: int, max_tokens: int, temperature: float) -> tuple[list[list[int]], float]:
    """Token ids of ``n`` answers, and seconds from the first token to the last."""
    replies = model.generate(_PROMPT, n=n, seed=1, max_tokens=max_tokens, temperature=temperature, ignore_eos=True)
    replies.read()
    # They share the seconds of a decode by their rows.
    return [each.token_ids for each in replies.answers], sum(each.statistics.decode_s for each in replies.answers)


def _one_by_one(
    model: edge_spec.TextModel, n: int, max_tokens: int, temperature: float
) -> tuple[list[list[int]], float]:
    found, seconds = [], 0.0
    for attempt in range(n):
        reply = model.generate(
            _PROMPT, seed=1, attempt=attempt, max_tokens=max_tokens, temperature=temperature, ignore_eos=True
        )
        reply.read()
        found.append(reply.token_ids)
        seconds += reply.statistics.decode_s
    return found, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--answers", default="1,2,4,8,16", help="how many at once")
    parser.add_argument("--tokens", type=int, default=128, help="of each answer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--temperature", type=float, default=0.8)
    asked = parser.parse_args()
    sizes = [int(size) for size in asked.answers.split(",")]
    ways = {"together": _together, "one by one": _one_by_one}
    with edge_spec.load(asked.model, engine="onnx", speculation="off", n_ctx=asked.tokens + 256) as model:
        print(f"{asked.model}, profile {model.profile.name}, {asked.tokens} tokens each, {asked.rounds} rounds")
        print(
            f"{'answers':>7} {'together, tokens/s':>18} {'one by one, tokens/s':>20} {'ratio':>6}  range of the ratio"
        )
        for n in sizes:
            _together(model, n, 8, asked.temperature)
            seconds: dict[str, list[float]] = {name: [] for name in ways}
            begun = perf_counter()
            for number in range(asked.rounds):
                order = list(ways) if number % 2 == 0 else list(ways)[::-1]
                texts = {}
                for name in order:
                    texts[name], spent = ways[name](model, n, asked.tokens, asked.temperature)
                    seconds[name].append(spent)
                if texts["together"] != texts["one by one"]:
                    raise SystemExit(f"{n} answers at once differ from the same ones one by one")
            speeds = {name: n * asked.tokens / median(spent) for name, spent in seconds.items()}
            ratios = sorted(slow / fast for slow, fast in zip(seconds["one by one"], seconds["together"], strict=True))
            print(
                f"{n:7} {speeds['together']:18.0f} {speeds['one by one']:20.0f} {median(ratios):6.2f}  "
                f"{ratios[0]:.2f} to {ratios[-1]:.2f} ({perf_counter() - begun:.0f} s)",
                flush=True,
            )


if __name__ == "__main__":
    main()
