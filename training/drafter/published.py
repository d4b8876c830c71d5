"""A head in the layout in which EAGLE-3 heads are published: safetensors, and a ``config.json`` beside them.

What edge-spec copies from the target when it loads a head is written out: the rows of the tokens that the head knows,
as they are rounded there, and rows of zeros as embeddings of all others. Every number is a float.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edge_spec.errors import UnsupportedModel
from edge_spec.extras import not_installed
from edge_spec.models import ModelFile, read_header
from edge_spec.models.heads import head_layers
from edge_spec.models.safetensors_head import CONFIG
from edge_spec.training.checkpoint import whole_file
from edge_spec.training.drafter.target_rows import EMBEDDING, OUTPUT, rows_of

__all__ = ["export_published"]

_WHOLE = {"fc": "fc", "output_norm": "norm"}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_norm_2": "hidden_norm",
    "ffn_norm": "post_attention_layernorm",
    **{f"attn_{name}": f"self_attn.{name}_proj" for name in "qkv"},
    "attn_output": "self_attn.o_proj",
    **{f"ffn_{name}": f"mlp.{name}_proj" for name in ("gate", "up", "down")},
}
_TURNED = ("attn_q", "attn_k")


def export_published(head: ModelFile, target: ModelFile, folder: Path) -> Path:
    """Write a head that was taught here; returns the file with the tensors.

    Raises:
        EdgeSpecError: safetensors is not installed.
        UnsupportedModel: it is not a head, belongs to another target, or that one's rows cannot be read.
        OSError: it cannot be written.
    """
    try:
        from safetensors.numpy import save_file
    except ImportError as error:
        raise not_installed("safetensors", "heads") from error
    if head.trimmed is None or head.head is None:
        raise UnsupportedModel(
            f"{head.path.name} is not a head on hidden states",
            hint="give the drafter.gguf of `edge-spec drafter make --kind head`; small models need no export",
        )
    layers = head_layers(head, target)
    kept = np.array(head.trimmed.ids.decode(), np.int64)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "model.safetensors"
    with whole_file(path) as temporary:
        save_file({**_own_tensors(head), **_tables(target, kept)}, temporary, metadata={"format": "pt"})
    (folder / CONFIG).write_text(json.dumps(_settings(head, target, layers, len(kept)), indent=2), "utf-8")
    return path


def _own_tensors(head: ModelFile) -> dict[str, npt.NDArray[np.float32]]:
    found = {}
    for tensor in head.tensors:
        rows = rows_of(head, tensor.name)
        assert rows is not None
        bare = tensor.name.removesuffix(".weight")
        name = bare.removeprefix("blk.0.")
        if name in _TURNED:
            # Here neighbors are turned together, there numbers half a head apart.
            pairs = rows.reshape(-1, head.head_dim_k // 2, 2, rows.shape[1])
            rows = pairs.swapaxes(1, 2).reshape(rows.shape)
        given = _WHOLE[bare] if bare in _WHOLE else f"midlayer.{_IN_LAYER[name]}"
        array = rows.reshape(tensor.shape[::-1])
        found[f"{given}.weight"] = np.ascontiguousarray(array, np.float32)
    return found


def _tables(target: ModelFile, kept: npt.NDArray[np.int64]) -> dict[str, npt.NDArray[np.generic]]:
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize, quantize

    def rounded(name: str) -> npt.NDArray[np.float32]:
        rows = rows_of(target, name)
        if rows is None:
            raise UnsupportedModel(f"{target.path.name} has no {name} to copy", hint="give the GGUF of its target")
        kind = GGMLQuantizationType.Q4_0
        return np.asarray(dequantize(quantize(rows[kept], kind), kind), np.float32)

    rows = rounded(EMBEDDING)
    embeddings = np.zeros((target.n_vocab, target.n_embd), np.float32)
    embeddings[kept] = rows
    has_output = any(tensor.name == OUTPUT for tensor in target.tensors)
    return {
        "embed_tokens.weight": embeddings,
        "lm_head.weight": rounded(OUTPUT) if has_output else rows,
        "d2t": kept - np.arange(len(kept)),
        "t2d": np.isin(np.arange(target.n_vocab), kept),
    }


def _settings(head: ModelFile, target: ModelFile, layers: tuple[int, ...], n_rows: int) -> dict[str, object]:
    said = read_header(head.path).metadata
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": head.n_embd,
        "intermediate_size": next(t.shape[-1] for t in head.tensors if t.name.endswith("ffn_up.weight")),
        "num_attention_heads": head.n_head,
        "num_key_value_heads": head.n_head_kv[0],
        "head_dim": head.head_dim_k,
        "num_hidden_layers": 1,
        "hidden_act": "silu",
        "rms_norm_eps": said["eagle3.attention.layer_norm_rms_epsilon"],
        "rope_theta": said["eagle3.rope.freq_base"],
        "max_position_embeddings": head.n_ctx_train or target.n_ctx_train,
        "vocab_size": target.n_vocab,
        "draft_vocab_size": n_rows,
        "target_hidden_size": target.n_embd,
        "eagle_aux_hidden_state_layer_ids": list(layers),
        "tie_word_embeddings": False,
    }
