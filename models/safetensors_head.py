"""EAGLE-3 heads as they are published: a ``.safetensors`` file, and the ``config.json`` beside it.

The layouts of AngelSlim, SpecForge and speculators. What such a head says is read as if it were a GGUF: the tensors
keep their bytes, under the names that llama.cpp's ``conversion/llama.py`` gives them, and settings become metadata.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edge_spec.errors import BAD_RECORD, ModelNotFound, NotAModel, TruncatedModel, UnsupportedModel
from edge_spec.extras import not_installed
from edge_spec.foreign import parse_json, read_json, read_regular, require_regular
from edge_spec.models.gguf.header import GGUFHeader, TensorInfo, Value
from edge_spec.models.gguf.types import TYPES
from edge_spec.models.head_facts import (
    D2T,
    EAGLE3,
    HALF_APART,
    NORM_BEFORE_FC,
    NORM_BEFORE_RESIDUAL,
    NORM_OUTPUT,
    OFFSETS,
)

__all__ = ["CONFIG", "SUFFIX", "config_bytes", "layers_read", "read_safetensors_head"]

SUFFIX, CONFIG = ".safetensors", "config.json"

_TYPES = {"F32": "F32", "F16": "F16", "BF16": "BF16", "I64": "I64", "I32": "I32"}

_LENGTH_BYTES = 8

_MOST = 1 << 31
"""No setting of a head is as large."""

_WHOLE = {
    "fc": "fc",
    "norm": "output_norm",
    "lm_head": "output",
    "embed_tokens": "token_embd",
    "input_norm": "enc.output_norm",
}

_IN_LAYER = {
    "input_layernorm": "attn_norm",
    "hidden_norm": "attn_norm_2",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}

_NOT_USED = ("t2d", "rotary_emb.inv_freq", "self_attn.rotary_emb.inv_freq")

_LAYER = re.compile(r"(?:midlayer|layers\.0)\.(.+)\.(weight|bias)")
_NORM = re.compile(r"fc_norm\.\d{1,2}\.weight")

_LAYER_IDS = "eagle_aux_hidden_state_layer_ids"


def read_safetensors_head(path: Path) -> GGUFHeader:
    """Read the header of a head and the settings beside it, as those of a GGUF.

    Raises:
        EdgeSpecError: the library is not installed.
        ModelNotFound: the file or its settings are not there. NotAModel, TruncatedModel: they are damaged.
        UnsupportedModel: it is no EAGLE-3 head, or one of a kind that is not supported.
    """
    listed, begin = _listed(path)
    tensors = tuple(sorted(_tensors(path, listed, begin), key=lambda tensor: tensor.offset))
    names = {tensor.name for tensor in tensors}
    if not {"fc.weight", "blk.0.attn_norm_2.weight"} <= names:
        raise UnsupportedModel(
            f"{path} is no EAGLE-3 head: it lacks fc or hidden_norm", hint="get the model as a GGUF, or another head"
        )
    return GGUFHeader(
        path=path,
        version=0,
        metadata=_metadata(path, _config(path)),
        tensors=tensors,
        data_offset=begin,
        file_bytes=path.stat().st_size,
    )


def config_bytes(path: Path) -> bytes:
    """Return the settings beside a head as they are in their file; see ``read_safetensors_head`` for errors."""
    try:
        return read_regular(path.with_name(CONFIG))
    except (OSError, ValueError) as error:
        raise ModelNotFound(
            f"{path} has no readable {CONFIG} beside it", hint="get it from where the head comes from, too"
        ) from error


def layers_read(path: Path) -> tuple[int, ...] | None:
    """Return the layers of its target whose input a head reads, see ``HeadFacts.layers``.

    vLLM, speculators and llama.cpp number inputs of layers. SGLang and SpecForge number layers, of which they read what
    goes out, and say so in ``eagle_config``.
    """
    config = _config(path)
    own, nested = config.get(_LAYER_IDS), _part(config, "eagle_config").get(_LAYER_IDS)
    listed, more = (own, 0) if own else (nested, 1)
    if not isinstance(listed, list):
        return None
    return tuple(number + more if type(number) is int and 0 <= number < _MOST else -1 for number in listed)


def _listed(path: Path) -> tuple[Mapping[str, Any], int]:
    """Return what the header says of each tensor, and where their data begin."""
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise not_installed("safetensors", "heads") from error
    hint = f"give the path of a {SUFFIX} file that you may read"
    try:
        require_regular(path)
        # It checks that tensors cover the file, in their order and without gaps.
        with safe_open(os.fspath(path), framework="numpy"):
            pass
        with path.open("rb") as file:
            n_bytes = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            listed = parse_json(file.read(n_bytes))
    except FileNotFoundError as error:
        raise ModelNotFound(f"there is no file {path}", hint=hint) from error
    except OSError as error:
        raise ModelNotFound(f"{path} cannot be read ({error.strerror or error})", hint=hint) from error
    except SafetensorError as error:
        # Names in it may be of any letters.
        why = "".join(letter for letter in str(error) if letter.isprintable())[:160]
        kind = TruncatedModel if "not fully covered" in why or "too small" in why.lower() else NotAModel
        raise kind(f"{path} is damaged or not whole: {why}", hint="download it again") from error
    except BAD_RECORD as error:
        raise NotAModel(f"{path} has a damaged header", hint="download it again") from error
    listed.pop("__metadata__", None)
    return listed, _LENGTH_BYTES + n_bytes


def _tensors(path: Path, listed: Mapping[str, Any], begin: int) -> list[TensorInfo]:
    found: dict[str, TensorInfo] = {}
    for given, told in listed.items():
        bare = given.removeprefix("model.")
        if bare.removeprefix("midlayer.").removeprefix("layers.0.") in _NOT_USED:
            continue
        name = _name(path, bare)
        kind = TYPES.get(_TYPES.get(told["dtype"], ""))
        if kind is None:
            raise UnsupportedModel(
                f"{path} holds {given[:64]!r} in the type {str(told['dtype'])[:16]}", hint="get it in BF16, F16 or F32"
            )
        shape = tuple(map(int, told["shape"]))[::-1] or (1,)
        if name in found or not all(shape):
            raise NotAModel(f"{path} holds {given[:64]!r} twice, or empty", hint="download it again")
        offset = begin + int(told["data_offsets"][0])
        found[name] = TensorInfo(name=name, shape=shape, type=kind, path=path, offset=offset)
    return list(found.values())


def _name(path: Path, bare: str) -> str:
    """Return the name of a tensor in a GGUF."""
    in_layer = _LAYER.fullmatch(bare)
    if in_layer is not None and in_layer[1] in _IN_LAYER:
        return f"blk.0.{_IN_LAYER[in_layer[1]]}.{in_layer[2]}"
    stem, _, kind = bare.rpartition(".")
    if stem in _WHOLE and kind in ("weight", "bias"):
        return f"{_WHOLE[stem]}.{kind}"
    if bare == D2T or _NORM.fullmatch(bare):
        return bare
    shown = "".join(letter for letter in bare[:64] if letter.isprintable())
    raise UnsupportedModel(
        f"{path} holds the tensor {shown}, which EAGLE-3 heads of one layer do not have", hint="get another head"
    )


def _config(path: Path) -> dict[str, Any]:
    config_bytes(path)
    try:
        config = read_json(path.with_name(CONFIG))
        return {**config, **_part(config, "transformer_layer_config")}
    except (OSError, *BAD_RECORD) as error:
        raise NotAModel(f"{path.with_name(CONFIG)} is not readable JSON", hint="download it again") from error


def _part(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = config.get(name)
    return part if isinstance(part, dict) else {}


def _metadata(path: Path, config: Mapping[str, Any]) -> dict[str, Value]:
    eagle, rope = _part(config, "eagle_config"), {**_part(config, "rope_parameters"), **_part(config, "rope_scaling")}

    def whole(name: str, default: int | None = None) -> int:
        value = config.get(name, default)
        value = default if value is None else value
        if type(value) is not int or not 0 < value < _MOST:
            raise NotAModel(f"{path.with_name(CONFIG)} has no valid number for {name}", hint="download it again")
        return value

    def number(of: Mapping[str, Any], name: str, default: float) -> float:
        value = of.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < _MOST:
            raise NotAModel(f"{path.with_name(CONFIG)} has no valid number for {name}", hint="download it again")
        return float(value)

    kind = config.get("speculators_model_type", EAGLE3)
    if kind != EAGLE3 or whole("num_hidden_layers", 1) != 1:
        raise UnsupportedModel(f"{path} is no EAGLE-3 head of one layer", hint="get another head")
    if config.get("hidden_act", "silu") != "silu":
        raise UnsupportedModel(f"{path} has gates that are no SiLU", hint="get another head")
    width, n_head = whole("hidden_size"), whole("num_attention_heads")
    head_dim = whole("head_dim", max(1, width // n_head))
    turned = int(head_dim * number({**config, **rope}, "partial_rotary_factor", 1.0))
    found: dict[str, Value] = {
        "block_count": 1,
        "context_length": whole("max_position_embeddings", 2048),
        "embedding_length": width,
        "feed_forward_length": whole("intermediate_size"),
        "attention.head_count": n_head,
        "attention.head_count_kv": whole("num_key_value_heads", n_head),
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": number(config, "rms_norm_eps", 1e-6),
        "rope.dimension_count": turned,
        "rope.freq_base": number({**rope, **config}, "rope_theta", 10000.0),
        "target_hidden_size": whole("target_hidden_size", width),
        "vocab_size": whole("vocab_size"),
        **{name: bool(config.get(name) or eagle.get(name)) for name in _FLAGS},
        HALF_APART: True,
        OFFSETS: True,
        **_scaling(path, rope, number),
    }
    return {"general.architecture": EAGLE3, **{f"{EAGLE3}.{name}": value for name, value in found.items()}}


_FLAGS = (NORM_BEFORE_FC, NORM_BEFORE_RESIDUAL, NORM_OUTPUT)


def _scaling(path: Path, rope: Mapping[str, Any], number: Any) -> dict[str, Value]:
    """Return what is said of longer contexts."""
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return {}
    if kind not in ("linear", "yarn", "llama3"):
        raise UnsupportedModel(f"{path} scales positions in the way {str(kind)[:32]!r}", hint="get another head")
    found: dict[str, Value] = {"rope.scaling.factor": number(rope, "factor", 1.0)}
    original = number(rope, "original_max_position_embeddings", 8192)
    if kind == "llama3":
        return found | {
            "rope.scaling.type": "llama3",
            "rope.scaling.original_context_length": int(original),
            "rope.scaling.low_freq_factor": number(rope, "low_freq_factor", 1.0),
            "rope.scaling.high_freq_factor": number(rope, "high_freq_factor", 4.0),
        }
    return found | {"rope.scaling.type": kind, "rope.scaling.original_context_length": int(original)}
