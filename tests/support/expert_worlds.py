"""Our operator of experts in a graph of its own, random weights to try it on, and the same in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

import edge_spec.engines.onnx.kernels as kernels
from edge_spec.engines.onnx.transcription.matrices import Matrix, group_outputs
from edge_spec.engines.onnx.transcription.proto import FLOAT, Graph

__all__ = ["SIDES", "ExpertWorld"]

Array = npt.NDArray[Any]
SIDES = ("gate", "up", "down")


@dataclass(frozen=True, kw_only=True)
class ExpertWorld:
    """Experts with random weights.

    Attributes:
        kinds: types of gate, up and down.
        limit, alpha: of the gate.
    """

    n_expert: int = 8
    n_used: int = 2
    n_embd: int = 64
    n_ff: int = 96
    kinds: tuple[str, str, str] = ("F32", "F32", "F32")
    biased: bool = False
    of_all: bool = True
    normalized: bool = True
    limit: float = 0.0
    alpha: float = 1.0
    seed: int = 0
    size: float = field(default=2.0)

    @cached_property
    def blocks(self) -> dict[str, Array]:
        """GGUF's blocks, ``[n_expert * outputs, bytes]``."""
        rng, made = np.random.default_rng(self.seed), {}
        for side, kind in zip(SIDES, self.kinds, strict=True):
            n_in, n_out = (self.n_ff, self.n_embd) if side == "down" else (self.n_embd, self.n_ff)
            values = rng.standard_normal((self.n_expert * n_out, n_in)).astype(np.float32) * self.size / np.sqrt(n_in)
            blocks: Array = gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind])
            made[side] = blocks.view(np.uint8).reshape(len(values), -1)
        return made

    @cached_property
    def biases(self) -> dict[str, Array]:
        rng, widths = np.random.default_rng(self.seed + 1), (self.n_ff, self.n_ff, self.n_embd)
        return {
            side: rng.standard_normal((self.n_expert, n)).astype(np.float32)
            for side, n in zip(SIDES, widths, strict=True)
        }

    def rows(self, n: int, *, seed: int = 2) -> tuple[Array, Array]:
        """Rows and their scores, ``[n, n_embd]`` and ``[n, n_expert]``; the first rows are the same for every n."""
        made = np.random.default_rng(seed).standard_normal((n, self.n_embd + self.n_expert)).astype(np.float32)
        return made[:, : self.n_embd].copy(), 2 * made[:, self.n_embd :].copy()

    def session(self, *, n_threads: int = 1, variant: str = "", held: int = 0, **changes: int | float) -> Any:
        import onnxruntime

        graph = Graph()
        graph.takes("x", FLOAT, ["batch", "rows", "n_embd"])
        graph.takes("scores", FLOAT, ["batch", "rows", "n_expert"])
        for side, kind in zip(SIDES, self.kinds, strict=True):
            n_out = self.n_embd if side == "down" else self.n_ff
            matrix = Matrix(
                name=side,
                kind=kind,
                n_out=self.n_expert * group_outputs(n_out),
                n_in=self.n_ff if side == "down" else self.n_embd,
                parts=lambda side=side: [self.blocks[side]],
                n_expert=self.n_expert,
            )
            graph.constant(side, kernels.pack(matrix.blocks(), kind))
        biases = [graph.constant(f"{side} bias", self.biases[side]) for side in SIDES] if self.biased else []
        facts: dict[str, int | float] = {
            "n_expert": self.n_expert,
            "n_used": self.n_used,
            "n_embd": self.n_embd,
            "n_ff": self.n_ff,
            "of_all": int(self.of_all),
            "normalized": int(self.normalized),
            "limit": self.limit,
            "alpha": self.alpha,
        }
        inputs = ["x", "scores", *SIDES, *biases]
        graph.node(kernels.EXPERT_ROWS, inputs, ["y"], kernels.DOMAIN, variant=variant, **facts | changes)
        graph.gives("y", FLOAT, ["batch", "rows", "n_embd"])
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = n_threads
        if held:
            options.add_session_config_entry("edge_spec.held_experts", str(held))
        options.register_custom_ops_library(str(kernels.library_path()))
        return onnxruntime.InferenceSession(graph.serialize(), options, providers=["CPUExecutionProvider"])

    def run(self, session: Any, x: Array, scores: Array) -> Array:
        """Return what experts make of rows, ``[n, n_embd]``."""
        result: Array = session.run(None, {"x": x[None], "scores": scores[None]})[0][0]
        return result

    def exact(self, x: Array, scores: Array) -> Array:
        """The same in float64, by the formulas."""
        weights = {
            side: gguf.quants.dequantize(self._typed(side, kind), gguf.GGMLQuantizationType[kind])
            .reshape(self.n_expert, -1, self.n_ff if side == "down" else self.n_embd)
            .astype(np.float64)
            for side, kind in zip(SIDES, self.kinds, strict=True)
        }
        biases = {side: bias.astype(np.float64) if self.biased else 0 * bias for side, bias in self.biases.items()}
        out = np.zeros((len(x), self.n_embd))
        for row, (numbers, given) in enumerate(zip(x.astype(np.float64), scores.astype(np.float64), strict=True)):
            used = self.used(given)
            weighed = np.exp(given - given.max())
            shares = weighed[used] / (weighed if self.of_all else weighed[used]).sum()
            shares = shares / shares.sum() if self.normalized else shares
            for share, expert in zip(shares, used, strict=True):
                gate, up = (weights[side][expert] @ numbers + biases[side][expert] for side in ("gate", "up"))
                if self.limit:
                    gate, up = np.minimum(gate, self.limit), np.clip(up, -self.limit, self.limit) + 1
                hidden = gate / (1 + np.exp(-self.alpha * gate)) * up
                out[row] += share * (weights["down"][expert] @ hidden + biases["down"][expert])
        return out

    def used(self, scores: Array) -> list[int]:
        """The experts that a row uses, ascending."""
        order: Sequence[int] = np.argsort(-scores, kind="stable")[: self.n_used].tolist()
        return sorted(order)

    def _typed(self, side: str, kind: str) -> Array:
        blocks = self.blocks[side]
        return blocks.view({"F32": np.float32, "F16": np.float16}.get(kind, np.uint8))
