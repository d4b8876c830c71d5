"""Milliseconds of a decode of one row, by how the cells of its text lie: in one piece, or in pieces of a pool.

    python benchmarks/scattered_cells.py [MODEL [--cells 200,2000,8000] [--pieces 1,8,32] [--rounds 40] [--kv auto]]
    python benchmarks/scattered_cells.py [MODEL] --texts 2,16 [--tokens 2000] [--more 200]

The first one reads a text of so many tokens and decodes a row behind it with the tiles of 16 cells in order and in
pieces of so many tiles, shuffled, in turns. What the row attends to differs, what is read does not. Medians are
printed.

With --texts as many answers of so many tokens are written side by side, then all but one end, and that one goes on for
``--more`` tokens. Printed are the pieces in which it lies at its end, and the median time of its first and last quarter
of further tokens, relative to the same answer written alone.
"""

from __future__ import annotations

import argparse
import random
from itertools import pairwise
from statistics import median
from time import perf_counter
from typing import Any

import edge_spec
from edge_spec.engines.onnx.pool import OnnxPath, OnnxPool
from edge_spec.speculation.pool import TILE
from edge_spec.speculation.tree import Tree


def shuffled(tiles: list[int], size: int) -> list[int]:
    """Return tiles in pieces of so many, in another order."""
    pieces = [tiles[first : first + size] for first in range(0, len(tiles), size)]
    random.Random(1).shuffle(pieces)
    return [tile for piece in pieces for tile in piece]


def simulated(model: edge_spec.TextModel, target: OnnxPath, options: argparse.Namespace) -> None:
    print(
        f"{'cells':>6} {'in one piece':>12}  "
        + "  ".join(f"{f'pieces of {size * TILE}':>16}" for size in options.pieces)
    )
    chance, pool = random.Random(1), target.pool
    for n in options.cells:
        with model.worker.pause():
            target.rollback(0)
            # The row lies in the middle of the last tile.
            n_read = n // TILE * TILE + TILE // 2
            pool.resize(n_read)
            target.prefill([chance.randrange(1000, 2000) for _ in range(n_read)])
            target.decode(Tree.sequence([1000]))
            ids = list(target.tiles.ids)
            orders = {0: ids, **{size: shuffled(ids, size) for size in options.pieces}}
            spent: dict[int, list[float]] = {size: [] for size in orders}
            for number in range(options.rounds + 2):
                for size in list(orders) if number % 2 == 0 else list(orders)[::-1]:
                    target.rollback(n_read)
                    target.tiles.ids = list(orders[size])
                    begun = perf_counter()
                    target.decode(Tree.sequence([1000]))
                    spent[size].append(perf_counter() - begun)
            target.tiles.ids = ids
            target.rollback(0)
        best, *others = (median(each[2:]) for each in spent.values())
        told = "  ".join(f"{each * 1e3:9.2f} ({each / best:.2f})" for each in others)
        print(f"{n:6} {best * 1e3:12.2f}  {told}", flush=True)


def n_pieces(pool: OnnxPool) -> int:
    """Return in how many pieces the longest text lies."""
    ids = max((path.ids for path in pool.tiles.paths), key=len)
    return 1 + sum(after != before + 1 for before, after in pairwise(ids))


def written(model: edge_spec.TextModel, n: int, options: argparse.Namespace) -> list[float]:
    """Return the seconds of each further token."""
    asked: dict[str, Any] = {"seed": 1, "temperature": 0.8, "ignore_eos": True, "reuse": False}
    long = model.generate("Tell me a story.", max_tokens=options.tokens + options.more, **asked)
    others = [
        model.generate(f"Tell me {number} stories.", max_tokens=options.tokens, **asked) for number in range(2, n + 1)
    ]
    for reply in [long, *others]:
        next(iter(reply))
    for reply in others:
        reply.read()
        reply.close()
    times, pieces, n_before = [perf_counter()], iter(long), len(long.token_ids)
    while next(pieces, None) is not None:
        if len(long.token_ids) > n_before:
            times.append(perf_counter())
        n_before = len(long.token_ids)
    return [last - first for first, last in pairwise(times)][-options.more :]


def grown(model: edge_spec.TextModel, target: OnnxPath, options: argparse.Namespace) -> None:
    print(f"{'texts':>5} {'pieces':>7} {'alone, ms':>9} {'first quarter':>13} {'last quarter':>12}")
    for n in options.texts:
        alone, times = (written(model, each, options) for each in (1, n))
        part = options.more // 4
        ratios = [median(times[place]) / median(alone[place]) for place in (slice(1, part), slice(-part, None))]
        pieces = n_pieces(target.pool)
        print(f"{n:5} {pieces:7} {median(alone) * 1e3:9.2f} {ratios[0]:13.2f} {ratios[1]:12.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--cells", default="200,2000,8000")
    parser.add_argument("--pieces", default="1,8,32", help="tiles in a piece")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--kv", default="auto", help="the type of the cache")
    parser.add_argument("--texts", help="write so many answers side by side instead")
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--more", type=int, default=200)
    options = parser.parse_args()
    for name in ("cells", "pieces", "texts"):
        setattr(options, name, [int(each) for each in (getattr(options, name) or "").split(",") if each])
    n_ctx = options.tokens + options.more + 64 if options.texts else max(options.cells) + 64
    own: dict[str, Any] = {"engine": "onnx", "speculation": "off", "kv_k": options.kv, "kv_v": options.kv}
    with edge_spec.load(options.model, n_ctx=n_ctx, **own) as model:
        target = model.followed["target"].model
        if not isinstance(target, OnnxPath):
            raise SystemExit("this model has no pool of cells in tiles")
        (grown if options.texts else simulated)(model, target, options)


if __name__ == "__main__":
    main()
