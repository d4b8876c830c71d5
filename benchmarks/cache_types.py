"""What types of cached keys and values cost in quality: likelihood of real text, and agreement of greedy tokens.

    python benchmarks/cache_types.py TEXTS [--model smollm2] [--engine onnx] [--kinds f16,...] [--tokens 50000]
        [--window 1024]

TEXTS is a file of JSON lines, compressed with xz or not, whose records have a ``text``, or ``turns`` with a ``text``
each. Texts are joined, and cut into windows of so many tokens, which every type reads anew: each token is predicted
from those before it in its window. Printed for each type, beside f32: the mean negative log-likelihood and its relative
change with a 95 % interval over the windows; the share of positions whose likeliest token is the same, and those of the
others where f32's two likeliest are closer than a thousandth; and the same for the last quarter of the windows' places.
"""

from __future__ import annotations

import argparse
import json
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

import edge_spec
from edge_spec.speculation.tree import Tree

_TIE = 1e-3


class Scores(NamedTuple):
    """Of every place of every window, ``[windows, places]``: how unlikely its token was, what was likeliest, and by how
    much more than the next likeliest."""

    losses: npt.NDArray[np.float64]
    likeliest: npt.NDArray[np.int64]
    leads: npt.NDArray[np.float64]


def texts_of(path: Path) -> Iterator[str]:
    """Yield the texts of a file."""
    with lzma.open(path, "rt", encoding="utf-8") if path.suffix == ".xz" else path.open(encoding="utf-8") as lines:
        for line in lines:
            record = json.loads(line)
            yield record["text"] if "text" in record else "\n\n".join(turn["text"] for turn in record["turns"])


def windows_of(model: edge_spec.TextModel, path: Path, n_tokens: int, window: int) -> list[list[int]]:
    """Return windows of tokens: together as many as are wanted, or as there are."""
    tokens: list[int] = []
    for text in texts_of(path):
        if len(tokens) >= n_tokens + window:
            break
        tokens += model.prompt_of(text[: 64 * window] + "\n\n", raw=True)
    return [tokens[first : first + window] for first in range(0, min(n_tokens, len(tokens) - window), window)]


def scores_of(model: edge_spec.TextModel, windows: list[list[int]]) -> Scores:
    """Let a model predict each token of each window from those before it."""
    found: list[list[tuple[float, int, float]]] = []
    with model.worker.pause():
        pool = model.prefix_cache.pool
        path = pool.path()
        most = pool.capabilities.max_rows
        for tokens in windows:
            path.rollback(0)
            own: list[tuple[float, int, float]] = []
            for first in range(0, len(tokens) - 1, most):
                piece = tokens[first : min(first + most, len(tokens) - 1)]
                rows = path.decode(Tree.sequence(piece))
                own += scores_of_rows(rows, tokens[first + 1 : first + 1 + len(piece)])
                path.keep(range(len(piece)))
                if path.n_past < first + len(piece):
                    path.prefill(piece[path.n_past - first :])
            found.append(own)
        path.close()
    losses, likeliest, leads = (np.array([[each[at] for each in own] for own in found]) for at in range(3))
    return Scores(losses, likeliest.astype(np.int64), leads)


def scores_of_rows(rows: npt.NDArray[np.float32], tokens: list[int]) -> Iterator[tuple[float, int, float]]:
    """Yield the loss of each row's token, the likeliest one and its lead."""
    for row, token in zip(rows.astype(np.float64), tokens, strict=True):
        second, first = np.partition(row, -2)[-2:]
        yield float(np.logaddexp.reduce(row) - row[token]), int(row.argmax()), float(first - second)


def since(place: int, scores: Scores) -> Scores:
    """Return the scores of the later places of every window."""
    return Scores(scores.losses[:, place:], scores.likeliest[:, place:], scores.leads[:, place:])


def compared(exact: Scores, other: Scores) -> str:
    """Return a line on scores beside those of f32."""
    of_windows = (other.losses - exact.losses).mean(axis=1) / exact.losses.mean()
    spread = 1.96 * of_windows.std(ddof=1) / len(of_windows) ** 0.5
    differs = other.likeliest != exact.likeliest
    ties = differs & (exact.leads < _TIE)
    return (
        f"{other.losses.mean():.5f}  {of_windows.mean():+.4%} ± {spread:.4%}  same {1 - differs.mean():.3%}"
        f" ({ties.sum()} of {differs.sum()} others are ties)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", type=Path)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--engine", default="onnx")
    parser.add_argument("--kinds", type=lambda text: text.split(","), default=["f16"])
    parser.add_argument("--tokens", type=int, default=50_000)
    parser.add_argument("--window", type=int, default=1024)
    options = parser.parse_args()
    exact: Scores | None = None
    for kind in ["f32", *options.kinds]:
        keys, _, values = kind.partition("/")
        with edge_spec.load(
            options.model,
            engine=options.engine,
            speculation="off",
            kv_k=keys,
            kv_v=values or keys,
            n_ctx=options.window,
        ) as model:
            windows = windows_of(model, options.texts, options.tokens, options.window)
            scores = scores_of(model, windows)
        if exact is None:
            exact = scores
            print(f"{options.model}, {len(windows)} windows of {options.window} tokens, {scores.losses.size} places")
            print(f"f32: {scores.losses.mean():.5f}")
            continue
        print(f"{kind}: {compared(exact, scores)}")
        last = options.window * 3 // 4
        print(f"  from place {last}: {compared(since(last, exact), since(last, scores))}", flush=True)


if __name__ == "__main__":
    main()
