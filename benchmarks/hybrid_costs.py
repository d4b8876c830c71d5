"""What drafts cost and gain on llama.cpp with models that have recurrent layers, in shapes of real ones.

    python benchmarks/hybrid_costs.py FOLDER [SHAPE ...] [--type Q4_0] [--threads 2] [--rounds 30] [--prompts 8]

SHAPE is a name of ``hybrid_shapes.py``, by default LFM2.5-1.2B and Qwen3.5-2B; models with random weights are written
into FOLDER where they are not there yet (0.7 and 1.2 GB as Q4_0). Printed are, for each:

- milliseconds of a decode by number of rows, in turns, each after a rejection: one row is kept and the others are
  taken back, as far as snapshots go. Beside them stands a single row in a context that keeps no snapshots;
- memory by number of rows: of a state and of its snapshots, as planned and as llama.cpp tells it, and of a whole
  context, as planned and as the process grows by it (less, where a part of it has not been touched);
- tokens per second of ``auto`` beside plain decoding, in turns, with drafts of the target's own recorded text of which
  a token is wrong as often as asked, and which cost nothing to draft. Ratios have 95 % intervals over prompts; the
  token ids are compared, and a difference is an error.

Measure on a quiet computer, with ``OMP_WAIT_POLICY`` unset.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
from hybrid_shapes import HYBRIDS, SMALL_HYBRIDS
from recorded_drafts import recorded_auto
from shape_files import shape_file

import edge_spec
from edge_spec.engines.llama.engine import LlamaEngine, open_llama
from edge_spec.engines.llama.footprint import listen_to_buffers
from edge_spec.engines.llama.pool import LlamaPath
from edge_spec.engines.llama.settings import LlamaSettings
from edge_spec.evaluation.intervals import interval_of_median
from edge_spec.generation.reply import Reply
from edge_spec.llama_cpp.weights import LlamaWeights
from edge_spec.memory import usage
from edge_spec.memory.usage import trim_heap
from edge_spec.models import inspect
from edge_spec.speculation.tree import Tree

ROWS = range(1, 9)
SNAPSHOT_ROWS = (1, 8, 16)
ACCURACIES = (0.5, 0.7)
N_PROMPT, N_CTX, N_RUNS = 64, 1024, 2

_STATE, _SNAPSHOTS = "recurrent state", "snapshots for drafts"
_OF_WEIGHTS = ("weights, mapped", "experts, mapped", "weights, repacked", "weights, copied", "vocabulary")
"""Lines of a plan that contexts of the same weights share."""

Found = dict[str, Any]


class Contexts:
    """Contexts over the weights of one file, whose settings differ in the number of rows.

    Args:
        cache_dir: where results of probing are kept.
    """

    def __init__(self, path: Path, n_threads: int, cache_dir: Path) -> None:
        self._cache_dir = cache_dir
        self._file = inspect(path)
        self._n_threads = n_threads
        self._weights = LlamaWeights(path)

    @contextmanager
    def opened(self, rows: int, sizes: Found | None = None) -> Iterator[LlamaPath]:
        """A context whose decodes have at most so many rows.

        Args:
            sizes: takes what its memory is, by the names of ``Footprint.lines``.
        """
        settings = self._settings(rows)
        with listen_to_buffers((sizes if sizes is not None else {}).__setitem__, settings):
            pool = open_llama(self._weights, settings, file=self._file.fingerprint, cache_dir=self._cache_dir)[0]
        try:
            yield pool.path()
        finally:
            pool.close()

    def planned(self, rows: int) -> dict[str, int]:
        """Return what such a context takes by the plan."""
        with LlamaEngine().estimator() as estimator:
            return estimator.footprint(self._file, self._settings(rows)).lines()

    def _settings(self, rows: int) -> LlamaSettings:
        asked = LlamaSettings(n_ctx=N_CTX, n_threads=self._n_threads, max_rows=rows)
        return asked.for_heads(self._file.head_dim_k).for_states(self._file.architecture)

    def close(self) -> None:
        """Free the weights."""
        self._weights.close()


def costs_by_rows(contexts: Contexts, n_rounds: int) -> Found:
    """Milliseconds of a decode: medians by number of rows, and of one row without snapshots."""
    rng = np.random.default_rng(1)
    with contexts.opened(ROWS[-1]) as model, contexts.opened(1) as plain:
        cases = [(f"{n}", model, n) for n in ROWS if n <= model.capabilities.max_rows]
        cases.append(("1, no snapshots", plain, 1))
        found: dict[str, list[float]] = {name: [] for name, _, _ in cases}
        for turn in range(n_rounds + 1):
            for each in (model, plain):
                each.rollback(0)
                each.prefill(rng.integers(300, each.n_vocab, N_PROMPT).tolist())
            for place in rng.permutation(len(cases)):
                name, context, n = cases[place]
                began = perf_counter()
                context.decode(Tree.sequence(rng.integers(300, context.n_vocab, n).tolist()))
                if turn:
                    # The first round warms up.
                    found[name].append(1e3 * (perf_counter() - began))
                context.keep([0])
    return {name: median(times) for name, times in found.items()}


def memory_by_rows(contexts: Contexts) -> Found:
    """Bytes by number of rows: of the snapshots as planned and as the library tells, and of the whole context."""
    found: Found = {}
    for rows in SNAPSHOT_ROWS:
        told: dict[str, int] = {}
        with contexts.opened(rows):
            # What probing touches, and leaves in the heap, is not the context's.
            pass
        trim_heap()
        before = usage().unique_bytes
        with contexts.opened(rows, told) as model:
            # What is not touched takes no memory.
            model.prefill(list(range(300, 300 + N_PROMPT)))
            n = model.capabilities.max_rows
            model.decode(Tree.sequence(range(300, 300 + n)))
            model.keep(range(n))
            grown = usage().unique_bytes - before
        planned = contexts.planned(rows)
        found[str(rows)] = {
            "state": planned.get(_STATE, 0),
            "planned": planned.get(_SNAPSHOTS, 0),
            "told": told.get(_SNAPSHOTS, 0),
            "context planned": sum(n for name, n in planned.items() if name not in _OF_WEIGHTS),
            "context grown": grown,
        }
    return found


def speed_ups(path: Path, asked: argparse.Namespace, cache_dir: Path) -> Found:
    """``auto`` against plain decoding, by how often drafted tokens are right."""
    n_prompts = asked.prompts
    prompts = np.random.default_rng(2).integers(300, inspect(path).n_vocab, (n_prompts, N_PROMPT)).tolist()

    def said(model: edge_spec.TextModel, number: int) -> Reply:
        reply = model.generate(
            tokens=prompts[number], seed=number, temperature=0.8, max_tokens=asked.tokens, ignore_eos=True
        )
        reply.read()
        return reply

    values: dict[str, Any] = {"engine": "llama", "n_ctx": N_CTX, "n_threads": asked.threads, "cache_dir": cache_dir}
    with ExitStack() as stack:
        plain = stack.enter_context(edge_spec.load(path, speculation="off", **values))
        texts = [[*prompts[number], *said(plain, number).token_ids] for number in range(n_prompts)]
        modes = {share: recorded_auto(texts, plain.n_vocab, accuracy=share) for share in ACCURACIES}
        drafted = {
            share: stack.enter_context(edge_spec.load(path, speculation=mode, **values))
            for share, mode in modes.items()
        }
        # What it learns of this computer is learned before.
        for model in drafted.values():
            said(model, 0)
        return {str(share): _compared(said, plain, model, texts) for share, model in drafted.items()}


def _compared(said: Any, plain: edge_spec.TextModel, drafted: edge_spec.TextModel, texts: Sequence[list[int]]) -> Found:
    ratios: list[list[float]] = [[] for _ in texts]
    speeds: list[float] = []
    n_drafted = n_accepted = 0
    for run in range(N_RUNS):
        for number, text in enumerate(texts):
            seconds = {}
            for model in (plain, drafted) if (run + number) % 2 else (drafted, plain):
                reply = said(model, number)
                if [*reply.prompt, *reply.token_ids] != text:
                    raise SystemExit(f"prompt {number} was answered otherwise {'with' * (model is drafted)} drafts")
                done = reply.statistics
                seconds[model is drafted] = done.decode_s
                n_drafted, n_accepted = n_drafted + done.drafted, n_accepted + done.accepted
            ratios[number].append(seconds[False] / seconds[True])
            speeds.append((len(text) - N_PROMPT) / seconds[False])
    low, high = interval_of_median(ratios)
    return {
        "ratio": median(chain(*ratios)),
        "interval": [low, high],
        "plain tokens/s": median(speeds),
        "drafted": n_drafted,
        "accepted": n_accepted / max(n_drafted, 1),
    }


def measured(path: Path, asked: argparse.Namespace, cache_dir: Path) -> Found:
    """All of it for one model."""
    contexts = Contexts(path, asked.threads, cache_dir)
    try:
        found = {"rows": costs_by_rows(contexts, asked.rounds), "memory": memory_by_rows(contexts)}
    finally:
        contexts.close()
    return found | {"auto": speed_ups(path, asked, cache_dir)}


def show(name: str, found: Found) -> None:
    """Print what was found, as tables."""
    print(f"\n{name}\n{'rows':>16} {'ms':>8} {'of one row':>11}")
    one = found["rows"]["1"]
    for rows, ms in found["rows"].items():
        print(f"{rows:>16} {ms:8.2f} {ms / one:11.2f}")
    print(
        "MiB by rows:         state, snapshots as planned and as told; the context as planned and as the process grew"
    )
    for rows, sizes in found["memory"].items():
        print(f"{rows:>16} {' '.join(f'{n_bytes / (1 << 20):9.2f}' for n_bytes in sizes.values())}")
    print(f"{'tokens right':>16} {'plain/s':>8} {'auto/plain':>11} {'95 % interval':>15} {'accepted':>9}")
    for share, came in found["auto"].items():
        low, high = came["interval"]
        ratio, interval = came["ratio"], f"{low:.2f} to {high:.2f}"
        print(f"{share:>16} {came['plain tokens/s']:8.1f} {ratio:11.2f} {interval:>15} {came['accepted']:9.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("shapes", nargs="*", default=["lfm2.5-1.2b", "qwen3.5-2b"], metavar="SHAPE")
    parser.add_argument("--type", default="Q4_0", help="of the matrices")
    parser.add_argument("--threads", type=int, default=0, help="0: as many as there are cores")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--json", type=Path, help="a file for the figures")
    asked = parser.parse_args()
    unknown = [name for name in asked.shapes if name not in HYBRIDS and name not in SMALL_HYBRIDS]
    if unknown:
        parser.error(f"there is no shape {unknown[0]!r}: choose {', '.join((*HYBRIDS, *SMALL_HYBRIDS))}")
    all_found: Found = {}
    with TemporaryDirectory() as cache_dir:
        for name in asked.shapes:
            all_found[name] = measured(shape_file(asked.folder, name, asked.type), asked, Path(cache_dir))
            show(name, all_found[name])
    if asked.json is not None:
        asked.json.write_text(json.dumps(all_found, indent=1), "utf-8")


if __name__ == "__main__":
    main()
