"""The inputs and outputs of a published graph: tokens, positions, and the keys and values of the text so far."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from edge_spec.errors import UnsupportedModel
from edge_spec.models.onnx.config_files import ConfigFiles
from edge_spec.models.onnx.graph_file import GraphFile, Port
from edge_spec.models.onnx.tokens import TokenizerSize

__all__ = ["CachePort", "PublishedGraph", "read_signature"]

_IDS, _MASK, _POSITIONS, _KEEP, _LOGITS = (
    "input_ids",
    "attention_mask",
    "position_ids",
    "num_logits_to_keep",
    "logits",
)
_PARTS = ("key", "value")
_WHOLE = ("int64", "int32")
_REAL = ("float32", "float16")
_GROUPED = "GroupQueryAttention"
_EXPORT = "get a text generation export of the model with past key values, for ONNX Runtime on CPU"


@dataclass(frozen=True, kw_only=True)
class CachePort:
    """The keys or the values of a layer, ``[1, n_heads, n_past, head_dim]``: where they go in and come out."""

    past: str
    present: str
    n_heads: int
    head_dim: int


@dataclass(frozen=True, kw_only=True)
class PublishedGraph:
    """A decoder with a cache, with the inputs and outputs that exporters have settled on.

    Attributes:
        path: the ``.onnx`` file.
        folder: that of its tokenizer and settings.
        ids: tokens ``[1, S]``.
        mask: 1 for each visible token, ``[1, n_past + S]``, or what is added to the scores (``bool``: which are
            visible), ``[1, 1, S, n_past + S]``; None if the graph has no such input.
        positions: ``[1, S]``; None if the graph counts by itself.
        keep: how many of the last rows of logits to return; None if the graph has no such input.
        cache: keys and values alternately, layer by layer.
        cache_kind: ``float32`` or ``float16``.
        logits: ``[1, S, n_vocab]``, ``float32`` or ``float16``.
        in_place: keys and values may enter and leave in the same memory, with room for more tokens.
        bos: the token that begins a text, -1 if there is none.
        eos: the token that ends a text, -1 if there is none.
        ends: the tokens that end a reply.
        tokenizer: size of its tokenizer; None until that is read.
    """

    path: Path
    folder: Path
    ids: Port
    mask: Port | None
    positions: Port | None
    keep: Port | None
    cache: tuple[CachePort, ...]
    cache_kind: str
    logits: Port
    in_place: bool
    bos: int
    eos: int
    ends: frozenset[int]
    tokenizer: TokenizerSize | None = None

    @property
    def takes_trees(self) -> bool:
        """Whether a token can be given a mask and a position of its own."""
        return self.mask is not None and len(self.mask.shape) == 4 and self.positions is not None

    @property
    def last_row_only(self) -> bool:
        """Whether the graph returns the logits of the last token only."""
        return self.logits.shape[1] == 1


def read_signature(file: GraphFile, configs: ConfigFiles, tokens: Mapping[str, int]) -> PublishedGraph:
    """Recognize the inputs and outputs of a graph.

    Args:
        tokens: id of each token by its text.

    Raises:
        UnsupportedModel: a graph of another kind; the error names the input or output that does not fit.
    """
    unknown = dict(file.inputs)
    ids, mask, positions, keep = (
        unknown.pop(_named(configs, "inputs", name), None) for name in (_IDS, _MASK, _POSITIONS, _KEEP)
    )
    if ids is None or ids.kind not in _WHOLE or len(ids.shape) != 2:
        wanted = _named(configs, "inputs", _IDS)
        raise _other(file, f"takes {_listed(file.inputs)} and no {wanted} of shape [batch, tokens]")
    if mask is not None and (len(mask.shape), mask.kind) not in {
        *((2, kind) for kind in _WHOLE),
        *((4, kind) for kind in (*_REAL, "bool")),
    }:
        raise _other(file, f"takes {mask.name} as {mask.kind} of {len(mask.shape)} dimensions")
    for port, n_dims in ((positions, 2), (keep, 0)):
        if port is not None and (port.kind not in _WHOLE or len(port.shape) != n_dims):
            raise _other(file, f"takes {port.name} as {port.kind} of {len(port.shape)} dimensions")
    cache = _cache(file, unknown, configs)
    if not cache:
        raise _other(file, f"takes no keys and values of earlier tokens: its inputs are {_listed(file.inputs)}")
    if unknown:
        raise _other(file, f"needs the input {_listed(unknown)}, which edge-spec does not know")
    kinds = {file.inputs[port.past].kind for port in cache} | {file.outputs[port.present].kind for port in cache}
    if len(kinds) != 1 or not kinds <= set(_REAL):
        raise _other(file, f"caches keys and values as {' and '.join(sorted(kinds))}")
    name = _named(configs, "outputs", _LOGITS)
    logits = file.outputs.get(name)
    if logits is None or logits.kind not in _REAL or len(logits.shape) != 3:
        raise _other(file, f"has no output {name} of shape [batch, tokens, vocabulary]")
    bos, ends = _special(configs, tokens)
    own_end = tokens.get(configs.token("eos_token") or "", -1)
    return PublishedGraph(
        path=file.path,
        folder=configs.folder,
        ids=ids,
        mask=mask,
        positions=positions,
        keep=keep,
        cache=cache,
        cache_kind=kinds.pop(),
        logits=logits,
        in_place=_in_place(file, cache),
        bos=bos,
        eos=own_end if own_end >= 0 else next(iter(ends), -1),
        ends=frozenset(ends) | ({own_end} - {-1}),
    )


def _named(configs: ConfigFiles, ports: str, key: str, usual: str = "") -> str:
    """Return the name of an input or output: that of ``genai_config.json`` where it gives one, else the usual one."""
    names = configs.decoder.get(ports)
    found = names.get(key) if isinstance(names, dict) else None
    return found if isinstance(found, str) and found else usual or key


def _past(configs: ConfigFiles, part: str) -> str:
    """Return the name of keys or values that go in, with ``%d`` for the layer."""
    return _named(configs, "inputs", f"past_{part}_names", f"past_key_values.%d.{part}")


def _cache(file: GraphFile, unknown: dict[str, Port], configs: ConfigFiles) -> tuple[CachePort, ...]:
    """Keys and values alternately; what is recognized is removed from ``unknown``."""
    layers: dict[int, dict[str, Port]] = {}
    for part in _PARTS:
        pattern = re.compile(re.escape(_past(configs, part)).replace("%d", "([0-9]{1,4})", 1))
        for name in list(unknown):
            found = pattern.fullmatch(name)
            if found and found.groups():
                layers.setdefault(int(found[1]), {})[part] = unknown.pop(name)
    ports = []
    for layer, parts in sorted(layers.items()):
        for part in _PARTS:
            present = _named(configs, "outputs", f"present_{part}_names", f"present.%d.{part}")
            present = present.replace("%d", str(layer), 1)
            if part not in parts or present not in file.outputs:
                raise _other(file, f"has no {present if part in parts else _past(configs, part) % layer}")
            ports.append(_cache_port(file, parts[part], present, configs))
    return tuple(ports)


def _cache_port(file: GraphFile, past: Port, present: str, configs: ConfigFiles) -> CachePort:
    if len(past.shape) != 4:
        raise _other(file, f"takes {past.name} in {len(past.shape)} dimensions instead of 4")
    n_heads, head_dim = past.shape[1], past.shape[3]
    if not isinstance(n_heads, int):
        n_heads = configs.number("num_key_value_heads", "num_attention_heads")
    if not isinstance(head_dim, int):
        head_dim = configs.number("head_size", "head_dim")
        head_dim = head_dim or configs.number("hidden_size") // (configs.number("num_attention_heads") or 1)
    if not (0 < n_heads < 1 << 16 and 0 < head_dim < 1 << 16):
        raise _other(file, f"does not say the size of {past.name}")
    return CachePort(past=past.name, present=present, n_heads=n_heads, head_dim=head_dim)


def _in_place(file: GraphFile, cache: tuple[CachePort, ...]) -> bool:
    """Return whether every past goes only into a grouped attention, and its present comes out of the same one.

    That operator appends new keys and values to the old ones, and does not copy these if both are in the same memory.
    """
    wanted = {port.past: port.present for port in cache}
    users: dict[str, int] = {}
    paired = set()
    for node in file.nodes:
        for name in node.inputs:
            users[name] = users.get(name, 0) + (name in wanted)
        if node.operator == _GROUPED and len(node.inputs) > 4 and len(node.outputs) > 2:
            paired |= set(zip(node.inputs[3:5], node.outputs[1:3], strict=True))
    return all(pair in paired and users[pair[0]] == 1 for pair in wanted.items())


def _special(configs: ConfigFiles, tokens: Mapping[str, int]) -> tuple[int, list[int]]:
    """Return the token that begins a text, and those that end one."""
    known = next(configs.ids("bos_token_id"), -1)
    # tokenizer_config.json takes precedence: it can say that there is no such token.
    bos = tokens.get(configs.token("bos_token") or "", -1) if configs.tokenizer else known
    return bos, list(dict.fromkeys(configs.ids("eos_token_id")))


def _listed(ports: Mapping[str, Port]) -> str:
    names = [repr(name[:48]) for name in ports]
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "") if names else "nothing"


def _other(file: GraphFile, what: str) -> UnsupportedModel:
    return UnsupportedModel(f"{file.path} {what}", hint=_EXPORT)
