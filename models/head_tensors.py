"""Whether a head is whole: it has every tensor that its network needs, in its shape, no other, and numbers.

The layer of an MTP head is one of its target's architecture, whose tensors engines know, see
``Engine.why_not_network``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from edge_spec.errors import Sentence, UnsupportedModel
from edge_spec.models.gguf.finite import CHECKED_TYPES, not_numbers
from edge_spec.models.gguf.header import GGUFArray, TensorInfo, read_header
from edge_spec.models.head_facts import D2T, HeadFacts
from edge_spec.models.heads import head_layers
from edge_spec.models.model_file import ModelFile
from edge_spec.models.mtp import as_in_file

__all__ = ["EMBEDDING", "FC_NORM", "OUTPUT", "drafted_tokens", "require_whole"]

EMBEDDING, OUTPUT = "token_embd", "output"

FC_NORM = "fc_norm"
"""Norms of what is read of each layer; a number follows."""

_HEAD_STEP, _WIDTH_STEP = 16, 32

_MOST_IN_A_GRAPH = 1 << 30
"""What may be added to a graph, which protocol buffers limit to twice that."""

_MOST_MARKS = 1 << 10
_MARKS = (3, 4)
"""Types in GGUFs of tokens that control a text, such as its end, and of those that were added to the vocabulary."""

Shape = tuple[int, ...]


def require_whole(file: ModelFile, target: ModelFile) -> None:
    """Check all tensors of a head for its target, and that they hold numbers.

    Raises:
        UnsupportedModel: something is missing or wrong; the message names it.
    """
    layers, head = head_layers(file, target), file.head
    assert head is not None
    wrong_tensors = _wrong_layer(file, target) if head.is_mtp else _wrong_tensors(file, target, head, len(layers))
    for wrong in (*_wrong_sizes(file, head), *wrong_tensors):
        raise _unfit(file, wrong)
    try:
        # Of embeddings single rows are read; they may be the largest part by far.
        name = not_numbers(tensor for tensor in file.tensors if tensor.name not in (D2T, f"{EMBEDDING}.weight"))
    except (OSError, ValueError) as error:
        raise _unfit(file, "cannot be read any more") from error
    if name:
        raise _unfit(file, f"holds NaN or infinite numbers in {name}")


def drafted_tokens(file: ModelFile, target: ModelFile) -> npt.NDArray[np.int64] | None:
    """Return the target's token of each output row of a head; None if each is that of its own number.

    Raises:
        UnsupportedModel: they are not distinct tokens of the target. Others: its file has changed.
    """
    told = next((tensor for tensor in file.tensors if tensor.name == D2T), None)
    if file.head is not None and file.head.is_mtp:
        return _merged_first(file.head, target)
    if told is None or file.head is None:
        return None
    kind = np.dtype(np.int64 if told.type_name == "I64" else np.int32)
    try:
        numbers = np.memmap(told.path, np.uint8, "r", told.offset, (told.n_bytes,)).view(kind).astype(np.int64)
    except (OSError, ValueError) as error:
        raise _unfit(file, "cannot be read any more") from error
    own, other = numbers, numbers + np.arange(len(numbers))
    own, other = (other, own) if file.head.offsets else (own, other)
    # Files of both kinds have been published in the other reading: it is meant where it alone gives tokens in order.
    for ids, is_sure in ((own, True), (other, bool((np.diff(other) > 0).all()))):
        if is_sure and (ids >= 0).all() and (ids < target.n_vocab).all() and len(np.unique(ids)) == len(ids):
            return ids
    raise _unfit(file, f"has {D2T} that are not distinct ones of the {target.n_vocab} tokens of {target.path.name}")


def _merged_first(head: HeadFacts, target: ModelFile) -> npt.NDArray[np.int64] | None:
    """Return which of its target's tokens a layer for further tokens drafts, ascending; None if these are all.

    Vocabularies list first what was merged first, which is what texts hold most. With these it drafts the tokens that
    control a text.

    Raises:
        ModelNotFound, TruncatedModel: the target's file has changed since it was inspected.
    """
    if head.n_rows >= target.n_vocab:
        return None
    marks = np.zeros(0, np.int64)
    types = read_header(target.path).metadata.get("tokenizer.ggml.token_type")
    if isinstance(types, GGUFArray) and types.length == target.n_vocab:
        marked = np.flatnonzero(np.isin(np.array(types.decode()), _MARKS))
        marks = marked[marked >= head.n_rows][:_MOST_MARKS]
    return np.concatenate([np.arange(head.n_rows - len(marks)), marks])


def _wrong_sizes(file: ModelFile, head: HeadFacts) -> Iterator[str]:
    if sum(tensor.n_bytes for tensor in file.tensors if tensor.name == "fc.weight") > _MOST_IN_A_GRAPH:
        yield "has a matrix fc of more than a gigabyte"
    if file.n_layers != 1:
        yield f"has {file.n_layers} layers, and only heads of one are supported"
    if file.head_dim_k != file.head_dim_v or file.head_dim_k % _HEAD_STEP:
        yield f"has heads of {file.head_dim_k} numbers, which edge-spec's attention does not know"
    if not file.n_head_kv[0] or file.n_head % file.n_head_kv[0]:
        yield f"has {file.n_head} heads of queries on {file.n_head_kv[0]} of keys and values"
    if file.n_embd % _WIDTH_STEP:
        yield f"has features of {file.n_embd} numbers, which is no multiple of {_WIDTH_STEP}"


def _wrong_layer(file: ModelFile, target: ModelFile) -> Iterator[str]:
    found = {tensor.name: tensor for tensor in file.tensors}
    tables = {f"{name}.weight": (file.n_embd, target.n_vocab) for name in (EMBEDDING, OUTPUT)}
    for name in ("nextn.eh_proj", "nextn.enorm", "nextn.hnorm"):
        if f"blk.0.{name}.weight" not in found:
            yield f"lacks the tensor blk.0.{name}.weight"
    for name, shape in tables.items():
        if name in found and found[name].shape != shape:
            yield f"has its own {name} in the shape {found[name].shape} instead of {shape}"
    for tensor in (*found.values(), *(each for each in target.tensors if each.name in tables)):
        if tensor.type_name not in CHECKED_TYPES:
            yield f"needs {tensor.name}, which is of the type {tensor.type_name}"


def _wrong_tensors(file: ModelFile, target: ModelFile, head: HeadFacts, n_read: int) -> Iterator[str]:
    found = {tensor.name.removesuffix(".weight"): tensor for tensor in file.tensors}
    needed, optional = _shapes(file, target, head, n_read, found)
    for name, shape in needed.items():
        if name not in found:
            yield f"lacks the tensor {name}"
        elif found[name].shape != shape:
            yield f"has the tensor {name} in the shape {found[name].shape} instead of {shape}"
    for name, tensor in found.items():
        if name not in needed and name not in optional:
            yield f"has the tensor {name}, which has no place in it as it is described"
        elif name in optional and tensor.shape != optional[name]:
            yield f"has the tensor {name} in the shape {tensor.shape} instead of {optional[name]}"
        is_whole_number = tensor.type_name in ("I64", "I32")
        if is_whole_number != (name == D2T) or (name != D2T and tensor.type_name not in CHECKED_TYPES):
            yield f"holds {name} in the type {tensor.type_name}"
    if D2T in found and OUTPUT not in found:
        yield f"says which tokens its output rows are ({D2T}), and has no such rows"
    if file.trimmed is None and D2T not in found and head.n_rows != target.n_vocab:
        yield f"drafts {head.n_rows} tokens, and does not say which of the {target.n_vocab} of {target.path.name}"
    taken = [name for name in (EMBEDDING, OUTPUT) if name not in found]
    if taken and file.n_embd != target.n_embd:
        yield f"lacks {taken[0]}, and has another width than its target: {file.n_embd}, not {target.n_embd}"
    for tensor in target.tensors if taken else ():
        if tensor.name.removesuffix(".weight") in (EMBEDDING, OUTPUT) and tensor.type_name not in CHECKED_TYPES:
            yield f"takes {tensor.name} from {target.path.name}, which has it in the type {tensor.type_name}"


def _shapes(
    file: ModelFile, target: ModelFile, head: HeadFacts, n_read: int, found: Mapping[str, TensorInfo]
) -> tuple[dict[str, Shape], dict[str, Shape]]:
    """Return the tensors that must be there, and those that may."""
    w, q, kv = file.n_embd, file.n_head * file.head_dim_k, file.n_head_kv[0] * file.head_dim_k
    read = n_read * head.width
    n_ff = found["blk.0.ffn_up"].shape[-1] if "blk.0.ffn_up" in found else 0
    needed: dict[str, Shape] = {
        "fc": (read, w),
        "output_norm": (w,),
        **{f"blk.0.{name}": (w,) for name in ("attn_norm", "attn_norm_2", "ffn_norm")},
        "blk.0.attn_q": (2 * w, q),
        "blk.0.attn_k": (2 * w, kv),
        "blk.0.attn_v": (2 * w, kv),
        "blk.0.attn_output": (q, w),
        "blk.0.ffn_gate": (w, n_ff),
        "blk.0.ffn_up": (w, n_ff),
        "blk.0.ffn_down": (n_ff, w),
    }
    optional: dict[str, Shape] = {
        "fc.bias": (w,),
        "blk.0.attn_q.bias": (q,),
        "blk.0.attn_k.bias": (kv,),
        "blk.0.attn_v.bias": (kv,),
    }
    if file.trimmed is None:
        optional |= {D2T: (head.n_rows,), OUTPUT: (w, head.n_rows), EMBEDDING: (w, target.n_vocab)}
    rotated = found.get("rope_freqs")
    if rotated is not None and len(rotated.shape) == 1 and 0 < 2 * rotated.shape[0] <= file.head_dim_k:
        optional["rope_freqs"] = rotated.shape
    if head.norm_before_fc:
        needed["enc.output_norm"] = (read,)
    for pair in (("blk.0.attn_q_norm", "blk.0.attn_k_norm"), tuple(f"{FC_NORM}.{place}" for place in range(n_read))):
        if any(name in found for name in pair):
            needed |= dict.fromkeys(pair, (file.head_dim_k if pair[0].startswith("blk") else head.width,))
    return needed, optional


def _unfit(file: ModelFile, wrong: str) -> UnsupportedModel:
    return UnsupportedModel(
        as_in_file(file, f"{file.path.name} {wrong}"),
        hint=Sentence("get another head, or run without one (leave out {draft})"),
    )
