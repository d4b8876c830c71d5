"""Our own time per round: everything but the libraries' decode calls.

    python benchmarks/round_cost.py

First on the demo family: the mean over the rounds of a reply, without the time inside llama_decode. Then with models
that do not compute, which return rows of random laws: what is left is drafting, filling trees, sampling, walking
and keeping books; the median and the best decile over rounds.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from time import perf_counter

import numpy as np

import edge_spec
from edge_spec.engines.llama.library import library
from edge_spec.sampling import Sampler, SamplerSettings
from edge_spec.speculation.drafters.model import ModelDrafter
from edge_spec.speculation.loop import Speculator
from edge_spec.speculation.language_model import Capabilities, Logits, NumericsProfile
from edge_spec.speculation.tree import EMPTY, Tree


class CannedModel:
    """Returns rows from a pool and measures nothing; the cost of a decode here is that of a Python call."""

    def __init__(self, rows: Logits) -> None:
        self._rows = rows
        self.n_vocab = rows.shape[1]
        self.n_ctx = 1 << 20
        self.n_past = 0
        self.capabilities = Capabilities(can_rollback=True, takes_trees=True, widths=tuple(range(1, 17)), max_rows=16)
        self.profile = NumericsProfile(engine="canned")
        self._pending: Tree = EMPTY

    def prefill(self, tokens: Sequence[int]) -> None:
        self.n_past += len(tokens)

    def decode(self, tree: Tree) -> Logits:
        start = (self.n_past + len(self._pending)) % (len(self._rows) - 16)
        n = len(tree) - len(self._pending)
        self._pending = tree
        return self._rows[start : start + n]

    def keep(self, path: Sequence[int]) -> None:
        self.n_past += len(path)
        self._pending = EMPTY

    def rollback(self, n_past: int) -> None:
        self.n_past = n_past
        self._pending = EMPTY

    def save(self) -> bytes:
        return b""

    def restore(self, state: bytes) -> None:
        """Nothing is kept."""

    def cancel(self) -> None:
        """Nothing runs long."""

    def resume(self) -> None:
        """Nothing runs long."""

    def close(self) -> None:
        """Nothing to free."""


def rows(n_vocab: int, seed: int) -> Logits:
    """Peaked laws like a language model's: a wide normal background and a few likely tokens."""
    rng = np.random.default_rng(seed)
    made = (rng.standard_normal((256, n_vocab)) * 1.5).astype(np.float32)
    for row in made:
        row[rng.integers(0, n_vocab, 24)] += (6 + rng.standard_normal(24) * 2).astype(np.float32)
    return made


def measure(n_vocab: int, limit: int, n_rounds: int = 2000) -> list[float]:
    """Microseconds per round with ``limit`` drafted tokens."""
    target_rows = rows(n_vocab, 0)
    # The drafter sees the same laws with an error, and so is right about as often as a real one.
    drafter_rows = target_rows + np.random.default_rng(1).standard_normal(target_rows.shape).astype(np.float32) * 0.5
    drafter = ModelDrafter(CannedModel(drafter_rows))
    speculator = Speculator(CannedModel(target_rows), drafter)
    prompt = list(range(100))
    settings = SamplerSettings(temperature=0.8, top_k=40, seed=1)
    speculator.begin(prompt, Sampler(settings, prompt), reuse=False)
    spent: list[float] = []
    accepted = 0
    for _ in range(n_rounds):
        start = perf_counter()
        done = speculator.step(limit, lambda token: False)
        spent.append((perf_counter() - start) * 1e6)
        accepted += len(done.tokens)
        if len(speculator.text) > 1000:
            speculator.begin(prompt, Sampler(settings, prompt), reuse=False)
    print(f"  mean accepted length {accepted / n_rounds:.2f}", file=sys.stderr)
    return sorted(spent)


def measure_demo(mode: str, max_tokens: int = 400) -> tuple[float, float]:
    """Microseconds per round on the real demo family, all but the library's decode calls, and tokens per round."""
    c = library().c
    decode, inside = c.llama_decode, [0.0]

    def timed(*args: object) -> int:
        start = perf_counter()
        try:
            return int(decode(*args))
        finally:
            inside[0] += perf_counter() - start

    with edge_spec.load(speculation=mode, n_threads=1) as model:
        model.generate("Tell me a story.", seed=1, max_tokens=50, ignore_eos=True).read()
        c.llama_decode = timed
        try:
            reply = model.generate("Tell me a story.", seed=2, max_tokens=max_tokens, ignore_eos=True)
            next(reply)  # The prompt is no round.
            rounds = reply.statistics.rounds
            inside[0] = 0.0
            start = perf_counter()
            reply.read()
            spent = perf_counter() - start - inside[0]
        finally:
            c.llama_decode = decode
    return spent / (reply.statistics.rounds - rounds) * 1e6, reply.statistics.mean_length


def main() -> None:
    for mode in ("off", "ngram", "sequence", "tree", "hierarchy"):
        runs = [measure_demo(mode) for _ in range(3)]
        spent, length = statistics.median(us for us, _ in runs), runs[0][1]
        print(f"demo family, {mode:>9}: {spent:7.1f} us per round outside llama_decode, {length:.2f} tokens per round")
    for n_vocab in (8_192, 152_064):
        for limit in (0, 3, 4):
            spent = measure(n_vocab, limit)
            print(
                f"vocabulary {n_vocab:>7}, {limit} drafted: median {statistics.median(spent):7.1f} us, "
                f"best decile {spent[len(spent) // 10]:7.1f} us"
            )


if __name__ == "__main__":
    main()
