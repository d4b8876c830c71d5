"""Our attention operator in a graph of its own, and random texts and trees to try it on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from edge_spec.engines.onnx.transcription.proto import FLOAT, FLOAT16, INT32, Graph

__all__ = [
    *("HEAD_DIM", "N_CELLS", "N_HEAD", "N_HEAD_KV"),
    *("Array", "Pool", "World", "numbers_of", "open_session", "worlds"),
]

Array = npt.NDArray[Any]
N_HEAD, N_HEAD_KV, HEAD_DIM, N_CELLS = 6, 2, 48, 112
WIDTH = (N_HEAD + 2 * N_HEAD_KV) * HEAD_DIM


def open_session(
    variant: str = "", *, f16: bool = False, grows: bool = False, sinks: bool = False, **changes: int
) -> Any:
    """Attention alone; ``grows`` for worlds whose queries grow with their place, ``sinks`` for those with sinks."""
    import onnxruntime

    from edge_spec.engines.onnx.kernels import library_path

    graph = Graph()
    facts = {"n_head": N_HEAD, "n_head_kv": N_HEAD_KV, "head_dim": HEAD_DIM, "interleaved": 1} | changes
    inputs = ["qkv", "keys", "values", "cos", "sin", "tree"]
    for name, rank in zip(inputs, (3, 4, 3, 2, 2, 1), strict=True):
        kind = INT32 if name == "tree" else FLOAT16 if f16 and name in ("keys", "values") else FLOAT
        graph.takes(name, kind, [f"{name}{axis}" for axis in range(rank)])
    if grows:
        inputs.append("scales")
        graph.takes("scales", FLOAT, ["scales0"])
    if sinks:
        inputs += ["sinks"] if grows else ["", "sinks"]
        graph.takes("sinks", FLOAT, ["sinks0"])
    graph.gives("y", FLOAT, ["b", "s", "w"])
    graph.node("AttendRows", inputs, ["y"], "edge_spec", variant=variant, **facts)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.register_custom_ops_library(str(library_path()))
    return onnxruntime.InferenceSession(graph.serialize(), options, providers=["CPUExecutionProvider"])


class World:
    """A cache with a text in it, and rows of a tree after it.

    Args:
        n_rotated: numbers of a head that are rotated by position.
        f16: whether the cache holds 16-bit floats.
        grows: whether queries grow with their place.
        sinks: a score for each head that belongs to no token; None for none.
    """

    def __init__(
        self,
        n_text: int,
        parents: list[int],
        seed: int = 0,
        *,
        n_rotated: int = HEAD_DIM,
        f16: bool = False,
        grows: bool = False,
        sinks: Sequence[float] | None = None,
    ) -> None:
        rng = np.random.default_rng(seed)
        self.n_text, self.parents, self.n_rotated = n_text, parents, n_rotated
        self.kind = np.float16 if f16 else np.float32
        self.rows = rng.standard_normal((len(parents), WIDTH)).astype(np.float32)
        self.text = rng.standard_normal((n_text, WIDTH)).astype(np.float32)
        self.sinks = None if sinks is None else np.array(sinks, np.float32)
        angles = np.arange(N_CELLS)[:, None] * 0.3 ** np.arange(n_rotated // 2)
        self.scales = 1 + rng.random(N_CELLS).astype(np.float32) if grows else None
        self.cos, self.sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)

    def run(self, session: Any, *, calls: list[int] | None = None) -> Array:
        """Outputs of the rows, ``[rows, n_head * head_dim]``, decoded in so many calls of these sizes."""
        pool, tiles = Pool(self, N_CELLS // 16), range(N_CELLS // 16)
        if self.n_text:
            pool.call(session, self.text, [(0, list(range(-1, self.n_text - 1)), self.n_text, tiles)])
        outs, end = [], 0
        for n in calls or [len(self.parents)]:
            some = self.rows[end : end + n]
            outs.append(pool.call(session, some, [(self.n_text, self.parents[: end + n], n, tiles)]))
            end += n
        return np.concatenate(outs)

    def exact(self, *, interleaved: bool = True, window: int = 0, unseen: int = 0) -> Array:
        """The same in float64, by the formula; the first ``unseen`` places see themselves only."""
        out = np.zeros((len(self.parents), N_HEAD, HEAD_DIM))
        for row in range(len(self.parents)):
            path = [row]
            while self.parents[path[0]] >= 0:
                path.insert(0, self.parents[path[0]])
            seen = np.concatenate([self.text, self.rows[path]]).astype(np.float64)
            seen = seen.reshape(len(seen), -1, HEAD_DIM)
            q, k, v = np.split(seen, [N_HEAD, N_HEAD + N_HEAD_KV], axis=1)
            q, k = self._rotated(q, interleaved)[-1], self._rotated(k, interleaved)
            q = q if self.scales is None else q * np.float64(self.scales[len(seen) - 1])
            start = max(len(seen) - window if window else 0, min(unseen, len(seen) - 1))
            k, v = (x[start:].astype(self.kind).astype(np.float64) for x in (k, v))
            for head in range(N_HEAD):
                kv = head // (N_HEAD // N_HEAD_KV)
                scores = k[:, kv] @ q[head] / np.sqrt(HEAD_DIM)
                weights = np.exp(scores - scores.max())
                sunk = 0 if self.sinks is None else np.exp(np.float64(self.sinks[head]) - scores.max())
                out[row, head] = weights @ v[:, kv] / (weights.sum() + sunk)
        return out.reshape(len(self.parents), -1)

    def _rotated(self, whole: Array, interleaved: bool) -> Array:
        x, rest = whole[..., : self.n_rotated], whole[..., self.n_rotated :]
        cos, sin = (each[: len(x), None].astype(np.float64) for each in (self.cos, self.sin))
        halves = (x[..., 0::2], x[..., 1::2]) if interleaved else np.split(x, 2, axis=-1)
        rotated = np.stack([halves[0] * cos - halves[1] * sin, halves[0] * sin + halves[1] * cos], axis=-1)
        rotated = (
            rotated.reshape(x.shape) if interleaved else np.concatenate([rotated[..., 0], rotated[..., 1]], axis=-1)
        )
        return np.concatenate([rotated, rest], axis=-1)


Text = tuple[int, Sequence[int], int, Sequence[int]]
"""The number of committed cells, parents of pending nodes, number of rows, and tiles."""


def numbers_of(texts: Sequence[Text]) -> list[int]:
    """The operator's input ``tree``."""
    numbers = [len(texts)]
    for n_text, parents, n_rows, tiles in texts:
        numbers += [n_text, len(parents), n_rows, len(tiles), *parents, *tiles]
    return numbers


class Pool:
    """Tiles for texts like a world's. What is in cells that no row sees must not matter."""

    def __init__(self, world: World, n_tiles: int) -> None:
        self.inputs = {
            "keys": np.full((N_HEAD_KV, n_tiles, HEAD_DIM, 16), 7, world.kind),
            "values": np.full((N_HEAD_KV, n_tiles * 16, HEAD_DIM), np.nan, world.kind),
            "cos": world.cos,
            "sin": world.sin,
        }
        if world.scales is not None:
            self.inputs["scales"] = world.scales
        if world.sinks is not None:
            self.inputs["sinks"] = world.sinks

    def call(self, session: Any, rows: Array, texts: Sequence[Text]) -> Array:
        """Outputs of rows of texts, in their order."""
        tree = np.array(numbers_of(texts), np.int32)
        result: Array = session.run(None, self.inputs | {"qkv": rows[None], "tree": tree})[0][0]
        return result


@st.composite
def worlds(draw: st.DrawFn, *, f16: bool = False) -> World:
    n = draw(st.integers(1, 20))
    chain = draw(st.booleans())
    parents = [node - 1 if chain else draw(st.integers(-1, node - 1)) for node in range(n)]
    n_rotated = draw(st.sampled_from([HEAD_DIM, HEAD_DIM, 32, 2]))
    return World(draw(st.integers(0, 90)), parents, draw(st.integers(0, 99)), n_rotated=n_rotated, f16=f16)
