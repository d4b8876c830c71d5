"""Inspect published models on disk: choose the graph of a folder, and read its facts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from edge_spec.errors import ModelNotFound, UnsupportedModel
from edge_spec.models.model_file import ModelFile, bytes_by_type
from edge_spec.models.onnx.config_files import GENAI, TOKENIZER, ConfigFiles
from edge_spec.models.onnx.graph_file import GraphFile, read_graph
from edge_spec.models.onnx.signature import read_signature
from edge_spec.models.onnx.tokens import kind_of, read_tokens, size_of_tokenizer, texts_by_id, vocabulary_of
from edge_spec.models.onnx.wire import ELEMENT_NUMBERS
from edge_spec.models.recommended_sampling import of_generation_config

__all__ = ["find_graph", "inspect_published", "is_empty", "published_texts"]

_SUFFIX = ".onnx"

_PREFERRED = ("model_q4", "model_q4f16", "model", "model_fp16", "decoder_with_past_model")
"""Usual names of graphs in one folder, the best for a small computer first."""

_SUBFOLDER = "onnx"
_FOUR_BITS = ("MatMulNBits", "GatherBlockQuantized")


def find_graph(folder: Path) -> Path | None:
    """Return the graph to use of a folder; None if there is none.

    ``genai_config.json`` names it; else it is the only one in the folder and its subfolder ``onnx``, or, of several,
    the first of the usual names, of which those with 4 bits come first.

    Raises:
        ModelNotFound: ``genai_config.json`` names one that is not there.
        UnsupportedModel: there are several, and nothing tells which is meant.
    """
    name = ConfigFiles(folder).decoder.get("filename") if (folder / GENAI).is_file() else None
    if isinstance(name, str):
        graph = folder / name
        if Path(name).name != name or not graph.is_file():
            raise ModelNotFound(f"{folder / GENAI} names {name[:64]!r}, which is not in its folder", hint="download it")
        return graph
    graphs = sorted(path for each in (folder, folder / _SUBFOLDER) for path in each.glob(f"*{_SUFFIX}"))
    # Ignore remains of an interrupted download if there is anything else.
    graphs = [path for path in graphs if not is_empty(path)] or graphs
    if len(graphs) > 1:
        known = [path for stem in _PREFERRED for path in graphs if path.stem == stem]
        if not known:
            names = ", ".join(path.name for path in graphs[:4])
            raise UnsupportedModel(f"{folder} holds several graphs ({names})", hint="give the path of one of them")
        return known[0]
    return graphs[0] if graphs else None


def is_empty(graph: Path) -> bool:
    """Return whether a file is empty, as after an interrupted download."""
    return graph.is_file() and graph.stat().st_size == 0


def inspect_published(path: str | os.PathLike[str]) -> ModelFile:
    """Inspect a published graph, or a folder with one, without loading weights.

    Raises:
        ModelNotFound, NotAModel, TruncatedModel, UnsupportedModel: it cannot be used; see ``read_graph``,
            ``read_tokens`` and ``read_signature``.
    """
    given = Path(path)
    graph = find_graph(given) if given.is_dir() else given
    if graph is None:
        raise ModelNotFound(f"there is no graph in {given}", hint="give the path of an .onnx file or its folder")
    file = read_graph(graph)
    configs = ConfigFiles(_home(graph))
    # Report a graph of another kind before a missing tokenizer.
    read_signature(file, configs, {})
    tokens, tokenizer = read_tokens(configs.folder)
    size = size_of_tokenizer(configs.folder, tokens, tokenizer)
    signature = read_signature(file, configs, tokens)
    n_vocab = signature.logits.shape[2]
    if not isinstance(n_vocab, int):
        n_vocab = configs.number("vocab_size") or max(tokens.values()) + 1
    if not 0 < n_vocab < 1 << 24:
        raise UnsupportedModel(f"{graph} has {n_vocab} tokens", hint="check where it comes from")
    types = bytes_by_type((tensor.kind or "other", tensor.n_bytes) for tensor in file.tensors)
    n_heads = tuple(port.n_heads for port in signature.cache[::2])
    return ModelFile(
        path=graph,
        parts=(graph,),
        fingerprint=file.fingerprint,
        architecture=configs.text("model_type", "type") or "unknown",
        name=configs.folder.resolve().name or graph.stem,
        n_layers=len(n_heads),
        n_embd=configs.number("hidden_size"),
        n_head=configs.number("num_attention_heads") or max(n_heads),
        n_head_kv=n_heads,
        head_dim_k=max(port.head_dim for port in signature.cache[::2]),
        head_dim_v=max(port.head_dim for port in signature.cache[1::2]),
        n_ctx_train=configs.number("context_length", "max_position_embeddings"),
        n_vocab=n_vocab,
        sliding_window=configs.number("sliding_window") or None,
        tensors=(),
        n_merges=size.n_merges,
        n_params=_n_params(file),
        weight_bytes=sum(types.values()),
        tensor_types=types,
        quantization="int4" if _in_four_bits(file) else next(iter(types), "none"),
        vocabulary=vocabulary_of(tokens, kind_of(tokenizer), n_vocab, (signature.bos, *signature.ends)),
        chat_template=configs.chat_template(),
        sampling=of_generation_config(configs.generation),
        graph=replace(signature, ends=frozenset(token for token in signature.ends if token < n_vocab), tokenizer=size),
    )


def published_texts(file: ModelFile) -> Sequence[str]:
    """Return the text of each token of a published model, ``[n_vocab]``."""
    assert file.graph is not None
    return texts_by_id(read_tokens(file.graph.folder)[0], file.n_vocab)


def _home(graph: Path) -> Path:
    """Return the folder with the tokenizer: that of the graph, or the one above a folder called ``onnx``."""
    folder = graph.parent
    if not (folder / TOKENIZER).exists() and folder.resolve().name == _SUBFOLDER:
        return folder.parent if folder.name == _SUBFOLDER else folder.resolve().parent
    return folder


def _in_four_bits(file: GraphFile) -> bool:
    return any(node.operator in _FOUR_BITS for node in file.nodes)


def _n_params(file: GraphFile) -> int:
    """Return a rough number of weights: two in a byte where the graph has 4-bit operators."""
    packed = 2 if _in_four_bits(file) else 1
    known = (tensor for tensor in file.tensors if tensor.kind in ELEMENT_NUMBERS)
    return sum(tensor.n_elements * (packed if tensor.kind == "uint8" else 1) for tensor in known)
