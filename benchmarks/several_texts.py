"""Tokens per second of several answers written together, beside the same ones one by one and what decodes take.

    python benchmarks/several_texts.py [MODEL [--answers 1,2,4,8,16,32] [--tokens 64] [--rounds 5] [--temperature 0.8]]

All sides decode plainly, on ONNX Runtime, answers to as many different prompts, of the same number of tokens (nothing
ends early), in turns, each beginning as often as the other; what is printed is the median of the rounds and the range
of the ratio. Reading the prompts is not counted on either side. The tokens are compared, and a difference is an error.

A decode of so many rows of one text, measured in between at a text of the same length, bounds what can be written
together: printed are its milliseconds, and the share of that bound that was reached. More answers than a decode has
rows take several decodes. ``outside`` is the share of the time that the replies spent outside of their decodes.

With ``--reading 128`` prompts of so many tokens are read together, as many as there are answers, beside one prompt of
as many tokens as all of them, and beside the same ones one after the other. With ``--drafts auto`` texts that are
written together with drafts are compared with plain ones together, and with drafts one by one; the last column is what
drafting took of a round of all of them, which compares from row to row where ``--draft-limit 3`` leaves each text as
long a draft as it has alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from itertools import chain
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

import edge_spec
from edge_spec.speculation.language_model import Logits
from edge_spec.speculation.pool import Path
from edge_spec.speculation.tree import Tree

_PROMPT = "Tell me {} things that a visitor of a small harbour town should see."
_READS, _DECODES = 2, 12


class Written(NamedTuple):
    """What some answers brought: their tokens, seconds from the first token to the last, and of these in decodes; what
    drafting took of a round of all."""

    tokens: list[list[int]]
    seconds: float
    decoding_s: float
    drafting_s: float


def _written(replies: Sequence[edge_spec.Reply]) -> Written:
    statistics = [reply.statistics for reply in replies]
    # They share the seconds of a decode by their rows.
    seconds = sum(each.decode_s for each in statistics)
    drafting_s = sum(each.draft_s for each in statistics) / max(each.rounds for each in statistics)
    decoding_s = sum(each.verify_s for each in statistics)
    return Written([reply.token_ids for reply in replies], seconds, decoding_s, drafting_s)


def together(model: edge_spec.TextModel, n: int, asked: dict[str, Any]) -> Written:
    """Write ``n`` answers in the same decodes."""
    replies = model.generate_many([_PROMPT.format(number + 2) for number in range(n)], **asked)
    replies.read()
    return _written(replies.answers)


def one_by_one(model: edge_spec.TextModel, n: int, asked: dict[str, Any]) -> Written:
    """Write the same answers one after the other."""
    replies = [model.generate(_PROMPT.format(number + 2), **asked) for number in range(n)]
    for reply in replies:
        reply.read()
    return _written(replies)


def _some_tokens(n: int, seed: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(1000, 2000, n)]


class Decodes:
    """Measures decodes of several rows of one text, in cells beside those of the answers.

    Args:
        n: the tokens of the text.
    """

    def __init__(self, model: edge_spec.TextModel, target: Path, n: int) -> None:
        self._worker, self._pool = model.worker, target.pool
        self._path: Path = target.pool.path()
        self._tokens = _some_tokens(n, 1)
        self._max_rows = target.capabilities.max_rows

    def seconds(self, n: int) -> float:
        """Return what decodes take that give ``n`` texts a row each."""
        # Between two steps the model gives cells back that no text holds.
        with self._worker.pause():
            self._pool.resize(self._pool.n_cells + len(self._tokens) + 2 * self._max_rows)
            self._path.prefill(self._tokens)
            seconds = sum(self._of(rows) for rows in self._rows(n))
            self._path.rollback(0)
        return seconds

    def _rows(self, n: int) -> list[int]:
        whole, rest = divmod(n, self._max_rows)
        return [self._max_rows] * whole + [rest] * (rest > 0)

    def _of(self, rows: int) -> float:
        spent = []
        for _ in range(_DECODES):
            begun = perf_counter()
            _used(self._path.decode(Tree.sequence(_some_tokens(rows, rows))))
            spent.append(perf_counter() - begun)
            self._path.rollback(self._path.n_past)
        return median(spent)

    def close(self) -> None:
        """Give the cells back."""
        self._path.close()


def _used(rows: Logits) -> None:
    assert len(rows)


def _writing(model: edge_spec.TextModel, target: Path, options: argparse.Namespace) -> None:
    asked = {"seed": 1, "max_tokens": options.tokens, "temperature": options.temperature, "ignore_eos": True}
    ways: dict[str, Callable[..., Written]] = {"together": together, "one by one": one_by_one}
    print(
        f"{'answers':>7} {'together, tokens/s':>18} {'one by one':>10} {'ratio':>6} {'range':>12} {'decode, ms':>10} "
        f"{'reached':>7} {'outside':>7}"
    )
    for n in options.sizes:
        together(model, n, asked | {"max_tokens": 8})
        decodes = Decodes(model, target, 20 + options.tokens // 2)
        found: dict[str, list[Written]] = {name: [] for name in ways}
        bounds = []
        for number in range(options.rounds):
            bounds.append(decodes.seconds(n))
            for name in list(ways) if number % 2 == 0 else list(ways)[::-1]:
                found[name].append(ways[name](model, n, asked))
            if found["together"][-1].tokens != found["one by one"][-1].tokens:
                raise SystemExit(f"{n} answers at once differ from the same ones one by one")
        decodes.close()
        speeds = {name: n * options.tokens / median(each.seconds for each in runs) for name, runs in found.items()}
        ratios = sorted(
            alone.seconds / joint.seconds for alone, joint in zip(found["one by one"], found["together"], strict=True)
        )
        outside = median(1 - run.decoding_s / run.seconds for run in found["together"])
        bound_s, (fast, slow) = median(bounds), speeds.values()
        print(
            f"{n:7} {fast:18.0f} {slow:10.0f} {median(ratios):6.2f} "
            f"{f'{ratios[0]:.2f} to {ratios[-1]:.2f}':>12} {bound_s * 1e3:10.2f} {fast * bound_s / n:7.2f} "
            f"{outside:7.2f}",
            flush=True,
        )


def _reading(model: edge_spec.TextModel, options: argparse.Namespace) -> None:
    asked: Any = {"seed": 1, "max_tokens": 1, "temperature": 0.0, "reuse": False}
    print(f"{'prompts':>7} {'together, tokens/s':>18} {'one long':>10} {'share':>6} {'one by one':>10}")
    for n in options.sizes:
        spent: dict[str, list[float]] = {"together": [], "one long": [], "one by one": []}
        for number in range(options.rounds * _READS):
            texts = [_some_tokens(options.reading, number * 1000 + place) for place in range(n)]
            many = model.replies(model.requests(texts, **asked))
            many.read()
            spent["together"].append(sum(each.statistics.prefill_s for each in many.answers))
            for name, prompts in {"one long": [list(chain(*texts))], "one by one": texts}.items():
                replies = [model.reply(prompt, **asked) for prompt in prompts]
                for reply in replies:
                    reply.read()
                spent[name].append(sum(each.statistics.prefill_s for each in replies))
        joint, long, alone = (n * options.reading / median(seconds) for seconds in spent.values())
        print(f"{n:7} {joint:18.0f} {long:10.0f} {joint / long:6.2f} {alone:10.0f}", flush=True)


def _drafting(model: edge_spec.TextModel, options: argparse.Namespace) -> None:
    asked = {"seed": 1, "max_tokens": options.tokens, "temperature": options.temperature, "ignore_eos": True}
    files = {"draft": options.draft, "intermediate": options.intermediate}
    named: dict[str, Any] = {"speculation": options.drafts, **{name: file for name, file in files.items() if file}}
    if options.draft_limit:
        named["draft_limit"] = options.draft_limit
    print(
        f"{'answers':>7} {'plain together':>14} {'drafts together':>15} {'one by one':>10} {'of the better one':>18} "
        f"{'drafting, ms':>13}"
    )
    with edge_spec.load(options.model, engine="onnx", n_ctx=options.tokens + 256, **named) as drafting:
        ways: dict[str, Callable[[int], Written]] = {
            "plain": lambda n: together(model, n, asked),
            "together": lambda n: together(drafting, n, asked),
            "one by one": lambda n: one_by_one(drafting, n, asked),
        }
        for n in options.sizes:
            found: dict[str, list[Written]] = {name: [] for name in ways}
            for number in range(options.rounds + 1):
                for name in list(ways) if number % 2 == 0 else list(ways)[::-1]:
                    found[name].append(ways[name](n))
                if len({str(runs[-1].tokens) for runs in found.values()}) > 1:
                    raise SystemExit(f"{n} answers at once differ from the same ones one by one")
            # In the first one the drafters have learned nothing.
            plain, joint, alone = (
                n * options.tokens / median(each.seconds for each in runs[1:]) for runs in found.values()
            )
            drafting_s = median(each.drafting_s for each in found["together"][1:])
            print(
                f"{n:7} {plain:14.0f} {joint:15.0f} {alone:10.0f} {joint / max(plain, alone):18.2f} "
                f"{drafting_s * 1e3:13.2f}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--answers", default="1,2,4,8,16,32", help="how many at once")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--reading", type=int, help="read prompts of so many tokens instead of writing answers")
    parser.add_argument("--drafts", help="measure texts with drafts of this mode, such as auto, beside plain ones")
    parser.add_argument("--draft", help="the drafter for that")
    parser.add_argument("--intermediate")
    parser.add_argument("--draft-limit", type=int, help="the most tokens drafted for a text")
    parser.add_argument("--kv", default="auto", help="the type of the cache")
    options = parser.parse_args()
    options.sizes = [int(size) for size in options.answers.split(",")]
    n_ctx = options.tokens + 256 if options.reading is None else max(options.sizes) * options.reading + 16
    own = {"engine": "onnx", "speculation": "off", "n_ctx": n_ctx, "kv_k": options.kv, "kv_v": options.kv}
    with edge_spec.load(options.model, **own) as model:
        print(f"{options.model}, profile {model.profile.name}, {options.rounds} rounds")
        target = model.followed["target"].model
        if target.pool.max_paths == 1:
            raise SystemExit("this engine holds one text")
        if options.reading is not None:
            _reading(model, options)
        elif options.drafts is not None:
            _drafting(model, options)
        else:
            _writing(model, target, options)


if __name__ == "__main__":
    main()
