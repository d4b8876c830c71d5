"""Microseconds per round without the libraries' decode calls.

    python benchmarks/round_cost.py [--runs 3] [--rounds 2000]

First on the demo family on llama.cpp: the mean over the rounds of a reply, without the time inside ``llama_decode``.
Then with models that return prepared random rows instead of computing any: what remains is drafting, building trees,
sampling, walking and statistics; printed are the median and the best decile over rounds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from time import perf_counter
from typing import Any, Self

import numpy as np

import edge_spec
from edge_spec.engines.pool import CachedPath, CachedPool, Part
from edge_spec.engines.settings import ModelSettings
from edge_spec.llama_cpp.library import library
from edge_spec.sampling import Sampler, SamplerSettings
from edge_spec.speculation.drafters.model import ModelDrafter
from edge_spec.speculation.language_model import ANYWHERE, Capabilities, Logits, NumericsProfile
from edge_spec.speculation.loop import Slot, decode, prepare
from edge_spec.speculation.pool import Path
from edge_spec.speculation.tree import EMPTY


class CannedPool(CachedPool["CannedText"]):
    """Returns rows that were made before: a decode costs what checks and counts cost."""

    n_cells = n_free = 1 << 20
    n_shared = cell_bytes = text_bytes = 0

    def __init__(self, rows: Logits) -> None:
        super().__init__(
            ModelSettings(n_ctx=self.n_cells, trees=True),
            n_vocab=rows.shape[1],
            profile=NumericsProfile(engine="canned"),
            capabilities=Capabilities(rollback=ANYWHERE, takes_trees=True, widths=tuple(range(1, 17)), max_rows=16),
        )
        self._rows = rows

    def path(self, like: Path | None = None) -> CannedText:
        return CannedText(self)

    def n_more(self, path: Path, n: int) -> int:
        return 0

    def _reserve(self, parts: Sequence[Part[CannedText]]) -> None:
        """There is room."""

    def _compute(self, parts: Sequence[Part[CannedText]], *, is_decode: bool) -> Logits:
        start = parts[0].start % (len(self._rows) - 16)
        return self._rows[start : start + len(parts[0].tokens)]

    def resize(self, n_cells: int) -> None:
        raise NotImplementedError

    def require_open(self) -> None:
        """It is never closed."""

    def cancel(self) -> None:
        raise NotImplementedError

    def resume(self) -> None:
        """Nothing was cancelled."""

    def close(self) -> None:
        """Nothing to free."""


class CannedText(CachedPath[CannedPool]):
    """A text in it."""

    def drop_pending(self) -> None:
        self.pending = EMPTY

    def _forked(self, n: int) -> tuple[Self, int]:
        raise NotImplementedError

    def _take_out(self, first: int, last: int) -> None:
        raise NotImplementedError

    def _write(self) -> bytes:
        raise NotImplementedError

    def _read(self, body: bytes, n_past: int) -> None:
        raise NotImplementedError


def rows(n_vocab: int, seed: int) -> Logits:
    """Peaked rows like a language model's: a wide normal background and a few likely tokens."""
    rng = np.random.default_rng(seed)
    made = (rng.standard_normal((256, n_vocab)) * 1.5).astype(np.float32)
    for row in made:
        row[rng.integers(0, n_vocab, 24)] += (6 + rng.standard_normal(24) * 2).astype(np.float32)
    return made


def measure(n_vocab: int, limit: int, n_rounds: int) -> list[float]:
    """Microseconds per round with ``limit`` drafted tokens, sorted."""
    target_rows = rows(n_vocab, 0)
    # The drafter returns the same rows with an error, and so is right about as often as a real one.
    drafter_rows = target_rows + np.random.default_rng(1).standard_normal(target_rows.shape).astype(np.float32) * 0.5
    drafter = ModelDrafter(CannedPool(drafter_rows).path())
    speculator = Slot(CannedPool(target_rows).path(), drafter)
    prompt = list(range(100))
    settings = SamplerSettings(temperature=0.8, top_k=40, seed=1)
    speculator.begin(prompt, Sampler(settings, prompt), reuse=False)
    spent: list[float] = []
    accepted = 0
    for _ in range(n_rounds):
        start = perf_counter()
        prepared = prepare([speculator], [limit])
        done = speculator.finish(prepared[0], decode([speculator], prepared)[0], lambda token: False)
        drafter.learn(done)
        spent.append((perf_counter() - start) * 1e6)
        accepted += len(done.tokens)
        if len(speculator.text) > 1000:
            speculator.begin(prompt, Sampler(settings, prompt), reuse=False)
    print(f"  mean accepted length {accepted / n_rounds:.2f}", file=sys.stderr)
    return sorted(spent)


def measure_demo(mode: str, max_tokens: int = 400) -> tuple[float, float]:
    """Microseconds per round of the demo family without the library's decode calls, and tokens per round."""
    c: Any = library().c
    decode, inside = c.llama_decode, [0.0]

    def timed(*args: object) -> int:
        start = perf_counter()
        try:
            return int(decode(*args))
        finally:
            inside[0] += perf_counter() - start

    with edge_spec.load("demo", engine="llama", speculation=mode, n_threads=1) as model:
        model.generate("Tell me a story.", seed=1, max_tokens=50, ignore_eos=True).read()
        c.llama_decode = timed
        try:
            reply = model.generate("Tell me a story.", seed=2, max_tokens=max_tokens, ignore_eos=True)
            next(reply)  # reads the prompt
            rounds = reply.statistics.rounds
            inside[0] = 0.0
            start = perf_counter()
            reply.read()
            spent = perf_counter() - start - inside[0]
        finally:
            c.llama_decode = decode
    return spent / (reply.statistics.rounds - rounds) * 1e6, reply.statistics.mean_length


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3, help="replies of the demo family per mode")
    parser.add_argument("--rounds", type=int, default=2000, help="rounds of models that do not compute")
    options = parser.parse_args()
    for mode in ("off", "ngram", "sequence", "tree", "hierarchy"):
        runs = [measure_demo(mode) for _ in range(options.runs)]
        spent, length = statistics.median(us for us, _ in runs), runs[0][1]
        print(f"demo family, {mode:>9}: {spent:7.1f} us per round outside llama_decode, {length:.2f} tokens per round")
    for n_vocab in (8_192, 152_064):
        for limit in (0, 3, 4):
            rounds = measure(n_vocab, limit, options.rounds)
            print(
                f"vocabulary {n_vocab:>7}, {limit} drafted: median {statistics.median(rounds):7.1f} us, "
                f"best decile {rounds[len(rounds) // 10]:7.1f} us"
            )


if __name__ == "__main__":
    main()
