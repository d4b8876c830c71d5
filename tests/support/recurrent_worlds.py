"""Our operators of layers with a state in graphs of their own, and random rows to try them on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edge_spec.engines.onnx.transcription.proto import FLOAT, INT64, Graph

__all__ = [
    "CAPACITY",
    "Array",
    "ConvolutionWorld",
    "DeltaWorld",
    "Layer",
    "RecurrentWorld",
    "divided",
    "run_together",
    "same_bits",
]

Array = npt.NDArray[Any]

CAPACITY = 20
"""Rows that a layer can keep."""

_HEAD = 16
"""Numbers of a layer before its states; the first two say where it is."""

_NUMBER = 1
"""Which of a text's layers the operator is; those before and after it are not to be touched."""


def same_bits(a: Array, b: Array) -> bool:
    return a.shape == b.shape and np.array_equal(a.view(np.uint32), b.view(np.uint32))


class Layer:
    """A layer with its state, and how far the text is committed.

    Attributes:
        layers: all of the text's layers, one after the other.
        arrays: what is in the operator's own.
    """

    def __init__(self, session: Any, arrays: dict[str, Array], constants: dict[str, Array]) -> None:
        self.layers = np.full((_NUMBER + 2, _HEAD + sum(array.size for array in arrays.values())), np.nan, np.float32)
        own, start = self.layers[_NUMBER], _HEAD
        self.arrays = {"place": own[:2].view(np.int32)}
        self.arrays["place"][:] = 0
        for name, array in arrays.items():
            self.arrays[name] = own[start : start + array.size].reshape(array.shape)
            self.arrays[name][...] = array
            start += array.size
        self.n_text = self.n_pending = 0
        self.session = session
        self.constants = constants

    def run(self, rows: dict[str, Array], *, n_read: int = 0) -> Array:
        """Return what new rows give; the first ``n_read`` are committed at once, and the others are pending."""
        return run_together([(self, rows, n_read)])[0]

    def numbers(self, n_new: int, n_read: int) -> list[int]:
        """Return what the input ``run`` has of this text."""
        return [self.layers.ctypes.data, self.n_text, self.n_pending, n_new, n_read]

    def keep(self, n: int) -> None:
        """Commit the first pending rows, and drop the others."""
        self.n_text += n
        self.n_pending = 0

    def settle(self, rows: dict[str, Array]) -> dict[str, Array]:
        """Return the state of the text, after a run without rows."""
        self.run({name: array[:0] for name, array in rows.items()})
        assert list(self.arrays["place"]) == [self.n_text, self.n_pending]
        n_kept = self.arrays["kept"].shape[0] - CAPACITY + self.n_pending
        kept = {name: array[: n_kept if name == "kept" else self.n_pending] for name, array in self.arrays.items()}
        return {**self.arrays, **{name: kept[name] for name in self.arrays if name.startswith("kept")}}


def run_together(texts: Sequence[tuple[Layer, dict[str, Array], int]], n_padding: int = 0) -> list[Array]:
    """Return what new rows of several texts give in one call, see ``Layer.run``.

    Args:
        n_padding: rows after those of all texts, whose outputs must be 0.
    """
    first = texts[0][0]
    counts = [len(next(iter(rows.values()))) for _, rows, _ in texts]
    numbers = [layer.numbers(n, n_read) for n, (layer, _, n_read) in zip(counts, texts, strict=True)]
    run = [len(texts), CAPACITY, first.layers.shape[1], *(number for each in numbers for number in each)]
    given = {
        name: np.concatenate([rows[name] for _, rows, _ in texts] + [np.ones((n_padding, array.shape[1]), np.float32)])
        for name, array in texts[0][1].items()
    }
    out: Array = first.session.run(
        None,
        {name: array[None] for name, array in given.items()} | first.constants | {"run": np.array(run, np.int64)},
    )[0][0]
    assert not out[sum(counts) :].any()
    for n, (layer, _, n_read) in zip(counts, texts, strict=True):
        layer.n_text += n_read
        layer.n_pending += n - n_read
        assert np.isnan(np.delete(layer.layers, _NUMBER, axis=0)).all()
    return np.split(out[: sum(counts)], np.cumsum(counts)[:-1])


@dataclass(frozen=True, kw_only=True)
class RecurrentWorld:
    """What is common to layers with a state; derived classes say what they compute."""

    n_taps: int = 4
    seed: int = 0

    operator = ""

    @property
    def n_channels(self) -> int:
        """Channels that are convolved."""
        raise NotImplementedError

    def widths(self) -> dict[str, int]:
        """Return how wide the rows of each input are, by name."""
        raise NotImplementedError

    def constants(self) -> dict[str, Array]:
        """Weights, by name."""
        raise NotImplementedError

    def states(self) -> dict[str, Array]:
        """Further states of an empty text, by name."""
        return {}

    def exact(self, rows: dict[str, Array]) -> Array:
        """Return what the rows of a text give, in float64 and by the formulas."""
        raise NotImplementedError

    def rows(self, n: int, seed: int = 0) -> dict[str, Array]:
        rng = np.random.default_rng([self.seed, seed])
        return {name: rng.standard_normal((n, width)).astype(np.float32) for name, width in self.widths().items()}

    def session(self, *, n_threads: int = 1, variant: str = "", **facts: int | float) -> Any:
        import onnxruntime

        from edge_spec.engines.onnx.kernels import library_path

        graph = Graph()
        inputs, constants = [*self.widths(), *self.constants(), "run"], self.constants()
        for name in inputs:
            rank = 3 if name in self.widths() else constants[name].ndim if name in constants else 1
            graph.takes(name, INT64 if name == "run" else FLOAT, [f"{name}{axis}" for axis in range(rank)])
        graph.gives("y", FLOAT, ["b", "s", "w"])
        graph.node(self.operator, inputs, ["y"], "edge_spec", variant=variant, **self.facts() | facts)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = n_threads
        options.register_custom_ops_library(str(library_path()))
        return onnxruntime.InferenceSession(graph.serialize(), options, providers=["CPUExecutionProvider"])

    def facts(self) -> dict[str, int | float]:
        """Attributes of the operator."""
        return {"number": _NUMBER}

    def layer(self, session: Any) -> Layer:
        """Return a layer at the beginning of a text."""
        arrays = self._arrays()
        # What is in rows that are not kept must not matter.
        arrays["kept"][self.n_taps - 1 :] = np.nan
        return Layer(session, arrays, self.constants())

    def _arrays(self) -> dict[str, Array]:
        return {"kept": np.zeros((self.n_taps - 1 + CAPACITY, self.n_channels), np.float32), **self.states()}

    def convolved(self, rows: Array, weights: Array) -> Array:
        """Rows after the convolution, float64."""
        before = np.concatenate([np.zeros((self.n_taps - 1, rows.shape[1])), rows.astype(np.float64)])
        return np.asarray(sum(weights[i].astype(np.float64) * before[i : i + len(rows)] for i in range(self.n_taps)))


@dataclass(frozen=True, kw_only=True)
class ConvolutionWorld(RecurrentWorld):
    """A short convolution between gates."""

    n_taps: int = 3
    n_channels: int = 48  # type: ignore[misc]

    operator = "ConvolveRows"

    def widths(self) -> dict[str, int]:
        return {"x": 3 * self.n_channels}

    def constants(self) -> dict[str, Array]:
        rng = np.random.default_rng(self.seed + 9)
        return {"weights": rng.standard_normal((self.n_taps, self.n_channels)).astype(np.float32)}

    def exact(self, rows: dict[str, Array]) -> Array:
        b, c, x = np.split(rows["x"].astype(np.float64), 3, axis=1)
        return c * self.convolved(b * x, self.constants()["weights"])


@dataclass(frozen=True, kw_only=True)
class DeltaWorld(RecurrentWorld):
    """A gated delta net."""

    n_head: int = 4
    n_head_k: int = 2
    size: int = 32
    epsilon: float = 1e-5

    operator = "DeltaRows"

    @property
    def n_channels(self) -> int:
        return (2 * self.n_head_k + self.n_head) * self.size

    def facts(self) -> dict[str, int | float]:
        return {**super().facts(), "n_head_k": self.n_head_k, "epsilon": self.epsilon}

    def widths(self) -> dict[str, int]:
        return {"mixed": self.n_channels, "z": self.n_head * self.size, "scores": 2 * self.n_head}

    def constants(self) -> dict[str, Array]:
        rng = np.random.default_rng(self.seed + 9)
        made = {
            "weights": rng.standard_normal((self.n_taps, self.n_channels)),
            "steps": rng.standard_normal(self.n_head),
            "rates": -rng.random(self.n_head),
            "norm": rng.standard_normal(self.size),
        }
        return {name: array.astype(np.float32) for name, array in made.items()}

    def states(self) -> dict[str, Array]:
        shape = (self.n_head, self.size // 16, self.size, 16)
        return {
            "kept_scores": np.full((CAPACITY, 2 * self.n_head), np.nan, np.float32),
            "states": np.zeros(shape, np.float32),
        }

    def exact(self, rows: dict[str, Array]) -> Array:
        weights = {name: array.astype(np.float64) for name, array in self.constants().items()}
        mixed = self.convolved(rows["mixed"], self.constants()["weights"])
        mixed = mixed * _sigmoid(mixed)
        n, heads = len(mixed), mixed.reshape(len(mixed), -1, self.size)
        q, k, v = np.split(heads, [self.n_head_k, 2 * self.n_head_k], axis=1)
        q, k = (x / np.sqrt((x**2).sum(axis=-1, keepdims=True) + self.epsilon) for x in (q, k))
        alpha, beta = np.split(rows["scores"].astype(np.float64), 2, axis=1)
        decays = np.exp(weights["rates"] * np.log1p(np.exp(alpha + weights["steps"])))
        z = rows["z"].astype(np.float64).reshape(n, self.n_head, self.size)
        out, state = np.zeros_like(z), np.zeros((self.n_head, self.size, self.size))
        for row in range(n):
            for head in range(self.n_head):
                own = head % self.n_head_k
                s = state[head] * decays[row, head]
                wrong = (v[row, head] - k[row, own] @ s) * _sigmoid(beta[row, head])
                state[head] = s + np.outer(k[row, own], wrong)
                out[row, head] = q[row, own] @ state[head] / np.sqrt(self.size)
        out = out / np.sqrt((out**2).mean(axis=-1, keepdims=True) + self.epsilon) * weights["norm"]
        return np.asarray((out * z * _sigmoid(z)).reshape(n, -1))


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def divided(
    world: RecurrentWorld, session: Any, rows: dict[str, Array], calls: Sequence[tuple[str, int]]
) -> tuple[Array, Layer]:
    """Rows of a text, read in pieces or decoded and kept, and the layer after it."""
    layer, outs, start = world.layer(session), [], 0
    for kind, n in calls:
        part = {name: array[start : start + n] for name, array in rows.items()}
        n = len(next(iter(part.values())))
        outs.append(layer.run(part, n_read=n if kind == "read" else 0))
        if kind == "decode":
            layer.keep(n)
        start += n
    return np.concatenate(outs), layer
