"""The files beside the graph of a published model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from made_tokenizers import byte_pairs, special_token
from published_weights import Weights

from edge_spec.models import ModelFile, inspect, read_header


def write_settings(folder: Path, weights: Weights, style: str, name: str = "model.onnx") -> None:
    """The files of a folder of this style, the graph ``name`` apart."""
    file, metadata = inspect(weights.path), read_header(weights.path).metadata
    tokens = _texts(metadata, "tokenizer.ggml.tokens")
    bos, eos = int(metadata["tokenizer.ggml.bos_token_id"]), int(metadata["tokenizer.ggml.eos_token_id"])  # type: ignore[arg-type]
    _dump(folder / "tokenizer.json", _tokenizer(metadata))
    _dump(
        folder / "config.json",
        {
            "model_type": "llama",
            "hidden_size": file.n_embd,
            "num_attention_heads": file.n_head,
            "num_key_value_heads": file.n_head_kv[0],
            "num_hidden_layers": file.n_layers,
            "vocab_size": file.n_vocab,
            "max_position_embeddings": file.n_ctx_train,
            "bos_token_id": bos,
            "eos_token_id": eos,
        },
    )
    _dump(folder / "generation_config.json", {"bos_token_id": bos, "eos_token_id": [eos, 0]})
    tokenizer = {"bos_token": tokens[bos], "eos_token": {"content": tokens[eos]}}
    if style == "plain":
        tokenizer["chat_template"] = str(file.chat_template)
    else:
        (folder / "chat_template.jinja").write_text(str(file.chat_template), "utf-8")
        _dump(folder / "genai_config.json", _genai_config(file, name, bos, eos))
    _dump(folder / "tokenizer_config.json", tokenizer)


def _tokenizer(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """A byte-level tokenizer with the tokens of a GGUF."""
    tokens = _texts(metadata, "tokenizer.ggml.tokens")
    kinds = metadata["tokenizer.ggml.token_type"].decode()
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "normalizer": None,
        "post_processor": None,
        "added_tokens": [special_token(n, tokens[n]) for n, kind in enumerate(kinds) if kind == 3],
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": byte_pairs(tokens, _texts(metadata, "tokenizer.ggml.merges")),
    }


def _genai_config(file: ModelFile, name: str, bos: int, eos: int) -> dict[str, Any]:
    past = {f"past_{part}_names": f"past_key_values.%d.{part}" for part in ("key", "value")}
    present = {f"present_{part}_names": f"present.%d.{part}" for part in ("key", "value")}
    return {
        "model": {
            "type": "llama",
            "context_length": file.n_ctx_train,
            "vocab_size": file.n_vocab,
            "bos_token_id": bos,
            "eos_token_id": [eos, 0],
            "pad_token_id": 0,
            "decoder": {
                "filename": name,
                "head_size": file.head_dim_k,
                "hidden_size": file.n_embd,
                "num_attention_heads": file.n_head,
                "num_key_value_heads": file.n_head_kv[0],
                "inputs": {"input_ids": "input_ids", "attention_mask": "attention_mask", **past},
                "outputs": {"logits": "logits", **present},
            },
        },
        "search": {"past_present_share_buffer": True},
    }


def _texts(metadata: Mapping[str, Any], key: str) -> list[str]:
    return [str(text) for text in metadata[key].decode()]


def _dump(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value), "utf-8")
