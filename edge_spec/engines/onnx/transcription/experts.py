"""Experts in a graph: the router, and the operator that multiplies each row with the experts that it chooses.

See ``edge_spec/engines/onnx/kernels/src/experts.h``.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from edge_spec.engines.onnx.kernels import DOMAIN, EXPERT_ROWS
from edge_spec.engines.onnx.transcription.matrices import Array, Matrix, Weights, group_outputs, packed
from edge_spec.engines.onnx.transcription.network import FUSED_EXPERTS, Network, tensor_blocks, tensor_values
from edge_spec.engines.onnx.transcription.proto import Graph
from edge_spec.models.gguf.header import TensorInfo

__all__ = ["add_experts"]

_MATRICES = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")

_N_FUSED = 2
"""The first of these may be one tensor in the file: of each expert the gate's rows, then those of up."""


def add_experts(graph: Graph, store: Weights, net: Network, layer: int, x: str, scores: str) -> str:
    """Add what the experts of a layer make of rows; returns its name.

    Args:
        x: the rows.
        scores: those of every expert for each row.
    """
    experts, blk = net.kind.experts, f"blk.{layer}."
    assert experts is not None
    inputs = [x, scores, *(packed(graph, store, matrix) for matrix in _matrices(net, layer))]
    for name in _MATRICES if experts.biased else ():
        bias = f"{blk}{name}.bias"
        values = tensor_values(net.tensors[bias])
        store.put(bias, values.nbytes, lambda values=values: values)  # type: ignore[misc]
        inputs.append(store.use(graph, bias))
    if experts.preferred:
        preferences = graph.constant(f"{blk}exp_probs_b", tensor_values(net.tensors[f"{blk}exp_probs_b.bias"]))
        inputs += [*([] if experts.biased else ["", "", ""]), preferences]
    graph.node(
        EXPERT_ROWS,
        inputs,
        [f"{blk}experts"],
        DOMAIN,
        n_expert=net.n_expert,
        n_used=net.n_used,
        n_embd=net.n_embd,
        n_ff=net.n_ff_expert,
        of_all=int(experts.of_all),
        normalized=int(experts.normalized),
        alpha=experts.alpha,
        limit=experts.limit,
    )
    return f"{blk}experts"


def _matrices(net: Network, layer: int) -> Iterator[Matrix]:
    """Yield gate, up and down of all experts of a layer, each as one matrix."""
    n_ff = net.n_ff_expert
    for place, name in enumerate(_MATRICES):
        fused = net.has_fused_experts(layer) and place < _N_FUSED
        tensor = net.tensors[f"blk.{layer}.{FUSED_EXPERTS if fused else name}.weight"]
        n_in, n_out, n_expert = tensor.shape
        yield Matrix(
            name=f"blk.{layer}.{name}",
            kind=tensor.type_name,
            n_out=n_expert * group_outputs(n_ff if fused else n_out),
            n_in=n_in,
            parts=partial(_parts, tensor, place, n_ff) if fused else partial(_whole, tensor),
            n_expert=n_expert,
        )


def _whole(tensor: TensorInfo) -> list[Array]:
    return [tensor_blocks(tensor)]


def _parts(tensor: TensorInfo, place: int, n_ff: int) -> list[Array]:
    """Return one of two matrices of each expert, which lie by turns."""
    blocks = tensor_blocks(tensor)
    return [blocks[first : first + n_ff] for first in range(place * n_ff, len(blocks), _N_FUSED * n_ff)]
