"""Ten headers with real vocabularies: the right facts, pairs and plans, and no weights at all.

The vocabularies are those of llama.cpp's source package; ``EDGE_SPEC_VOCABULARIES`` names the folder that holds
``ggml-vocab-*.gguf`` (``vendor/llama.cpp/models`` of the unpacked ``llama_cpp_python`` sdist).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter

from edge_spec.errors import VocabularyMismatch
from edge_spec.library.description import describe
from edge_spec.loading import plan
from edge_spec.models import GGUFArray, check_pair, inspect, read_header

FOLDER = os.environ.get("EDGE_SPEC_VOCABULARIES", "")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not FOLDER, reason="EDGE_SPEC_VOCABULARIES names no folder")]


class Shape(NamedTuple):
    vocabulary: str
    architecture: str
    n_layers: int
    n_embd: int
    n_head: int
    n_head_kv: int
    n_ff: int
    head_dim: int
    n_vocab: int  # 0 for that of the vocabulary


SHAPES = {
    "qwen2.5-0.5b": Shape("qwen2", "qwen2", 24, 896, 14, 2, 4864, 64, 151936),
    "qwen2.5-7b": Shape("qwen2", "qwen2", 28, 3584, 28, 4, 18944, 128, 152064),
    "qwen3-0.6b": Shape("qwen2", "qwen3", 28, 1024, 16, 8, 3072, 128, 151936),
    "llama-3.2-1b": Shape("llama-bpe", "llama", 16, 2048, 32, 8, 8192, 64, 0),
    "llama-3.2-3b": Shape("llama-bpe", "llama", 28, 3072, 24, 8, 8192, 128, 0),
    "tinyllama": Shape("llama-spm", "llama", 22, 2048, 32, 4, 5632, 64, 0),
    "phi-3-mini": Shape("phi-3", "llama", 32, 3072, 32, 32, 8192, 96, 0),
    "deepseek": Shape("deepseek-coder", "llama", 24, 2048, 16, 16, 5504, 128, 0),
    "gpt-neox-like": Shape("gpt-neox", "llama", 12, 768, 12, 12, 3072, 64, 0),
    "starcoder-like": Shape("starcoder", "llama", 24, 2048, 16, 4, 5632, 128, 0),
}
PAIRS = {
    frozenset(pair)
    for pair in (
        ("qwen2.5-0.5b", "qwen2.5-7b"),
        ("qwen2.5-0.5b", "qwen3-0.6b"),
        ("qwen2.5-7b", "qwen3-0.6b"),
        ("llama-3.2-1b", "llama-3.2-3b"),
        # Phi-3 has the tokenizer of Llama 2 and control tokens behind it.
        ("tinyllama", "phi-3-mini"),
    )
}


def write_header(path: Path, shape: Shape) -> Path:
    """A header, and a hole where the weights would be."""
    writer = GGUFWriter(path, shape.architecture)
    write_facts(writer, shape)
    n_vocab = write_vocabulary(writer, shape)
    n_bytes = write_tensors(writer, shape, n_vocab)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    end = path.stat().st_size
    os.truncate(path, end + -end % 32 + n_bytes)
    return path


def write_facts(writer: GGUFWriter, shape: Shape) -> None:
    of = shape.architecture
    facts = {
        "context_length": 8192,
        "embedding_length": shape.n_embd,
        "block_count": shape.n_layers,
        "feed_forward_length": shape.n_ff,
        "attention.head_count": shape.n_head,
        "attention.head_count_kv": shape.n_head_kv,
        "attention.key_length": shape.head_dim,
        "attention.value_length": shape.head_dim,
        "rope.dimension_count": shape.head_dim,
    }
    for name, value in facts.items():
        writer.add_uint32(f"{of}.{name}", value)
    writer.add_float32(f"{of}.attention.layer_norm_rms_epsilon", 1e-6)


def write_vocabulary(writer: GGUFWriter, shape: Shape) -> int:
    """The real one, padded to as many tokens as the model has; returns how many."""
    n_vocab = 0
    metadata = read_header(Path(FOLDER) / f"ggml-vocab-{shape.vocabulary}.gguf").metadata
    for key, value in metadata.items():
        if not key.startswith("tokenizer."):
            continue
        if not isinstance(value, GGUFArray):
            kind = {str: GGUFValueType.STRING, bool: GGUFValueType.BOOL, int: GGUFValueType.UINT32}[type(value)]
            writer.add_key_value(key, value, kind)
            continue
        items = list(value.decode())
        if key != "tokenizer.ggml.merges":
            n, n_vocab = len(items), shape.n_vocab or len(items)
            more: dict[str, Any] = {"tokens": "[PAD{}]", "token_type": 5, "scores": -1000.0}
            filler = more[key.rpartition(".")[2]]
            padding = (filler.format(token) if isinstance(filler, str) else filler for token in range(n, n_vocab))
            items = [*items[:n_vocab], *padding]
        writer.add_key_value(key, items, GGUFValueType.ARRAY, sub_type=GGUFValueType(value.element_type))
    return n_vocab


def write_tensors(writer: GGUFWriter, shape: Shape, n_vocab: int) -> int:
    """Write what tensors there are; returns the bytes that they would take."""
    total = 0

    def tensor(name: str, *dims: int) -> None:
        nonlocal total
        raw, n = (GGMLQuantizationType.Q4_0, 18) if len(dims) > 1 else (GGMLQuantizationType.F32, 128)
        n_bytes = int(np.prod(dims)) // 32 * n
        # For quantized types the writer wants the shape in bytes.
        stored = (dims[0], dims[1] // 32 * n) if len(dims) > 1 else dims
        writer.add_tensor_info(name, stored, np.dtype(np.uint8 if len(dims) > 1 else np.float32), n_bytes, raw)
        total += n_bytes + -n_bytes % 32

    n_q, n_kv = shape.n_head * shape.head_dim, shape.n_head_kv * shape.head_dim
    tensor("token_embd.weight", n_vocab, shape.n_embd)
    tensor("output_norm.weight", shape.n_embd)
    for layer in range(shape.n_layers):
        blk = f"blk.{layer}."
        for name in ("attn_norm", "ffn_norm"):
            tensor(f"{blk}{name}.weight", shape.n_embd)
        for name, n_out in (("attn_q", n_q), ("attn_k", n_kv), ("attn_v", n_kv)):
            tensor(f"{blk}{name}.weight", n_out, shape.n_embd)
            if shape.architecture == "qwen2":
                tensor(f"{blk}{name}.bias", n_out)
        if shape.architecture == "qwen3":
            tensor(f"{blk}attn_q_norm.weight", shape.head_dim)
            tensor(f"{blk}attn_k_norm.weight", shape.head_dim)
        tensor(f"{blk}attn_output.weight", shape.n_embd, n_q)
        for name in ("ffn_gate", "ffn_up"):
            tensor(f"{blk}{name}.weight", shape.n_ff, shape.n_embd)
        tensor(f"{blk}ffn_down.weight", shape.n_embd, shape.n_ff)
    return total


@pytest.fixture(scope="module")
def headers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("headers")
    return {name: write_header(folder / f"{name}.gguf", shape) for name, shape in SHAPES.items()}


@pytest.mark.parametrize("name", SHAPES)
def test_the_facts_are_those_of_the_header(name: str, headers: dict[str, Path]) -> None:
    found, shape = describe(headers[name]), SHAPES[name]
    file = found.file
    assert (file.architecture, file.n_layers, file.n_embd) == (shape.architecture, shape.n_layers, shape.n_embd)
    assert (file.quantization, file.n_ctx_train) == ("Q4_0", 8192)
    assert shape.n_vocab in (0, file.n_vocab)
    assert found.obstacles["llama"] is None
    assert found.head == "" and found.n_mtp_layers == 0


def test_pairs_are_those_of_one_vocabulary(headers: dict[str, Path]) -> None:
    files = {name: inspect(path) for name, path in headers.items()}
    for target in files:
        for draft in files:
            if target == draft or frozenset((target, draft)) in PAIRS:
                check_pair(files[target], files[draft])
            else:
                with pytest.raises(VocabularyMismatch, match="token"):
                    check_pair(files[target], files[draft])


@pytest.mark.parametrize("name", SHAPES)
def test_a_plan_holds_the_weights_and_the_cache(name: str, headers: dict[str, Path]) -> None:
    file, shape = inspect(headers[name]), SHAPES[name]
    chosen = plan(headers[name], n_ctx=4096, memory="24GiB", held_bytes=60 << 20, cache_dir=None).chosen
    per_token = 2 * shape.n_layers * shape.n_head_kv * shape.head_dim  # keys and values
    assert chosen.n_ctx == 4096
    assert chosen.needed_bytes > file.weight_bytes + 4096 * per_token
    assert chosen.needed_bytes < 3 * file.weight_bytes + 4 * 4096 * per_token + (1 << 30)


def test_a_small_model_is_planned_as_the_drafter_of_a_large_one(headers: dict[str, Path]) -> None:
    found = plan(
        headers["qwen2.5-7b"],
        draft=headers["qwen2.5-0.5b"],
        n_ctx=4096,
        memory="24GiB",
        held_bytes=60 << 20,
        cache_dir=None,
    ).chosen
    assert {"target", "draft"} <= found.parts.keys()
