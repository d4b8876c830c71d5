"""Which targets a drafter was made for: all files of one model, however their weights are quantized.

Published heads do not name their target. They fit any whose hidden states and vocabulary have the sizes that they read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edge_spec.models.gguf.trimmed import (
    TARGET_ARCHITECTURE,
    TARGET_BLOCK_COUNT,
    TARGET_EMBEDDING_LENGTH,
    TARGET_FINGERPRINT,
    TARGET_TOKENS,
    TARGET_VOCABULARY,
    TargetShape,
)
from edge_spec.models.model_file import ModelFile
from edge_spec.models.mtp import n_own_layers

__all__ = ["add_target", "why_not_for", "why_not_read"]


def why_not_for(drafter: ModelFile, target: ModelFile) -> str | None:
    """Return why a drafter was not made for a target, as a clause about the drafter.

    None if it was, or if it was made for no target in particular. What a model writes hardly depends on the type of its
    weights, nor do its hidden states. A drafter that lists its target's tokens and does not name the target's shape is
    for the file alone that taught it.
    """
    trimmed, name = drafter.trimmed, target.path.name
    if trimmed is None:
        return why_not_read(drafter, target)
    if trimmed.teacher == target.fingerprint:
        return None
    if trimmed.of != target.vocabulary.tokens_hash:
        return f"was made for another vocabulary than that of {name}"
    if trimmed.target is None:
        return f"was made for another file than {name}, and does not tell of which model that is"
    found = _shape_of(target)
    return f"was made for {trimmed.target}, and {name} is {found}" if trimmed.target != found else None


def why_not_read(drafter: ModelFile, target: ModelFile) -> str | None:
    """Return why a head cannot read a target, as a clause about it; None if it can, or if the drafter is no head."""
    head, name = drafter.head, target.path.name
    if head is None:
        return None
    if head.width != target.n_embd:
        return f"reads {head.width} numbers of a layer, and {name} has {target.n_embd}"
    if drafter.trimmed is None and drafter.n_vocab not in (0, target.n_vocab):
        return f"was made for {drafter.n_vocab} tokens, and {name} has {target.n_vocab}"
    n_layers = n_own_layers(target)
    if not head.layers_of(n_layers):
        numbers = ", ".join(map(str, head.layers or ())) or "none"
        return f"does not name layers of {name}, which has {n_layers}, but {numbers}"
    if head.is_mtp and (drafter.architecture, head.layers) != (target.architecture, (n_layers,)):
        found = _shape_of(target)
        belongs = TargetShape(architecture=drafter.architecture, n_layers=max(head.layers or ()), width=head.width)
        return f"belongs to {belongs}, and {name} is {found}"
    return None


def add_target(writer: Any, kept: Sequence[int], target: ModelFile) -> None:
    """Write into a drafter's file which tokens it knows, and what its target is.

    Args:
        writer: a ``gguf.GGUFWriter``.
        kept: the target's ids, ascending.
    """
    from gguf import GGUFValueType

    shape = _shape_of(target)
    writer.add_key_value(TARGET_TOKENS, list(map(int, kept)), GGUFValueType.ARRAY, sub_type=GGUFValueType.UINT32)
    writer.add_string(TARGET_VOCABULARY, target.vocabulary.tokens_hash)
    writer.add_string(TARGET_FINGERPRINT, target.fingerprint)
    writer.add_string(TARGET_ARCHITECTURE, shape.architecture)
    writer.add_uint32(TARGET_BLOCK_COUNT, shape.n_layers)
    writer.add_uint32(TARGET_EMBEDDING_LENGTH, shape.width)


def _shape_of(model: ModelFile) -> TargetShape:
    return TargetShape(architecture=model.architecture, n_layers=n_own_layers(model), width=model.n_embd)
