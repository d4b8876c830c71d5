"""The demo model with the chat template of a family and its special tokens, added to the demo's own vocabulary."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import gguf
from copied_gguf import copy_metadata
from family_templates import FAMILIES

from edge_spec.models import resolve_family
from edge_spec.tokens.shown import SHOWN

__all__ = ["MARKS", "SPECIAL_TOKENS", "SpecialTokens", "write_family_model"]

MARKS = (*sorted(SHOWN), "<|call|>", "<|return|>")
_CONTROL, _DEFINED = 3, 4


@dataclass(frozen=True, kw_only=True)
class SpecialTokens:
    """What a published vocabulary has beside words.

    Attributes:
        ends: the tokens that end a reply; the first one is that of the file.
        others: further control tokens, which do not.
        normal: a word that looks like one that ends.
        as_text: the marks that it lists as text.
    """

    ends: tuple[str, ...]
    others: tuple[str, ...]
    normal: str = ""
    as_text: tuple[str, ...] = ()


_TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
_QWEN = SpecialTokens(ends=("<|im_end|>", "<|endoftext|>"), others=("<|im_start|>",), as_text=_TAGS)
_LFM = SpecialTokens(
    ends=("<|im_end|>", "<|endoftext|>"),
    others=("<|startoftext|>", "<|im_start|>", "<|tool_list_start|>", "<|tool_response_start|>"),
)
SPECIAL_TOKENS = {
    "Qwen 3": _QWEN,
    "Qwen 3.5": _QWEN,
    "LFM2": _LFM,
    "LFM2.5": _LFM,
    "Gemma 4": SpecialTokens(
        ends=("<turn|>", "<eos>", "<|tool_response>"),
        others=("<bos>", "<|turn>", "<|think|>", "<|tool>", "<tool|>"),
        normal="</s>",
        as_text=("<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>", "<tool_response|>"),
    ),
    "gpt-oss": SpecialTokens(ends=("<|return|>", "<|call|>", "<|endoftext|>"), others=("<|startoftext|>",)),
    "Ministral 3": SpecialTokens(
        ends=("</s>",),
        others=("<s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
    ),
    "SmolLM3": SpecialTokens(
        ends=("<|im_end|>", "<|end_of_text|>"), others=("<|begin_of_text|>", "<|im_start|>"), as_text=_TAGS
    ),
    "Granite 4": SpecialTokens(
        ends=("<|end_of_text|>",), others=("<|start_of_role|>", "<|end_of_role|>"), as_text=_TAGS
    ),
    "OLMo 2": SpecialTokens(ends=("<|endoftext|>",), others=("<|pad|>",)),
}
"""By family."""


def write_family_model(path: Path, family: str) -> Path:
    """Write it; the marks are the last tokens, in this order."""
    reader = gguf.GGUFReader(resolve_family("demo").target)
    writer = gguf.GGUFWriter(path, reader.fields["general.architecture"].contents())
    special = SPECIAL_TOKENS[family]
    names = {name for name in (*special.ends, *special.others, *special.as_text, special.normal) if name}
    added = (*sorted(names - {*MARKS}), *MARKS)
    kinds = [_DEFINED if name in special.as_text else 1 if name == special.normal else _CONTROL for name in added]
    tokens: list[str] = reader.fields["tokenizer.ggml.tokens"].contents()
    types: list[int] = reader.fields["tokenizer.ggml.token_type"].contents()
    # The model's own control tokens are those of no family.
    tokens = [
        f"<|unused{n}|>" if kind == _CONTROL else name for n, (name, kind) in enumerate(zip(tokens, types, strict=True))
    ]
    tokens[-len(added) :], types[-len(added) :] = added, kinds
    settings = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.eos_token_id": tokens.index(special.ends[0]),
        "tokenizer.chat_template": FAMILIES[family],
    }
    copy_metadata(reader, writer, leave_out=("GGUF.",), changed=lambda key, value: settings.get(key, value))
    writer.add_vocab_size(len(tokens))
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
