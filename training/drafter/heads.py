"""A head for one target: its shape, the target's rows that it is trained with, and what it begins with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from edge_spec.errors import UnsupportedModel
from edge_spec.models import ModelFile, read_header
from edge_spec.models.heads import reads
from edge_spec.models.mtp import n_own_layers
from edge_spec.training.drafter.target_rows import EMBEDDING, OUTPUT, rows_of
from edge_spec.training.settings import HeadShape

if TYPE_CHECKING:
    from edge_spec.training.drafter.head_model import Head
    from edge_spec.training.drafter.head_objective import HeadObjective

__all__ = ["build_head", "continue_head", "head_shape", "require_head", "start_head", "target_layers"]

_BLOCK = 32
_LEAST_LAYERS = 4


def target_layers(target: ModelFile) -> tuple[int, int, int]:
    """Return the layers whose inputs a head reads: an early one, the middle, and the last.

    Raises:
        UnsupportedModel: the target has too few.
    """
    n = n_own_layers(target)
    if n < _LEAST_LAYERS:
        raise UnsupportedModel(
            f"{target.path.name} has {n} layers, and a head reads three of at least {_LEAST_LAYERS}",
            hint="make a small model instead (`--kind model`)",
        )
    return max(1, n // 10), n // 2, n - 1


def head_shape(target: ModelFile, n_vocab: int) -> HeadShape:
    """Return the shape of a head: one layer like the target's.

    Args:
        n_vocab: tokens that it knows, and one for all others.
    """
    metadata, arch = read_header(target.path).metadata, target.architecture

    def number(key: str, default: float) -> float:
        value = metadata.get(f"{arch}.{key}", default)
        return float(value) if isinstance(value, int | float) else default

    width, head = target.n_embd, target.head_dim_k
    if head * target.n_head != width or head % _BLOCK:
        head = 64 if width % 64 == 0 else _BLOCK
    n_head, n_head_kv = width // head, max(target.n_head_kv)
    return HeadShape(
        n_layers=1,
        n_embd=width,
        n_head=n_head,
        n_head_kv=n_head_kv if n_head % n_head_kv == 0 else n_head,
        n_ff=int(number("feed_forward_length", 3 * width)) // _BLOCK * _BLOCK,
        n_vocab=n_vocab,
        n_ctx=target.n_ctx_train,
        rope_base=number("rope.freq_base", 10000.0),
        norm_epsilon=number("attention.layer_norm_rms_epsilon", 1e-5),
        target_layers=target_layers(target),
    )


def build_head(target: ModelFile, kept: npt.NDArray[np.int64]) -> Head:
    """Return a head that has learned nothing, with the target's rows of the kept tokens.

    Raises:
        UnsupportedModel: the target's file does not hold these rows in a form that can be read here.
    """
    import torch

    from edge_spec.training.drafter.head_model import Head

    embedding = rows_of(target, EMBEDDING)
    if embedding is None:
        raise UnsupportedModel(
            f"the embeddings of {target.path.name} cannot be read",
            hint="use a GGUF of the model, or make a small model instead (`--kind model`)",
        )
    output = rows_of(target, OUTPUT)
    rows = (embedding, embedding if output is None else output)
    known = [torch.from_numpy(np.concatenate([each[kept], np.zeros_like(each[:1])])) for each in rows]
    return Head(head_shape(target, len(kept) + 1), known[0], known[0] if output is None else known[1])


_START_PLACES = 256


def start_head(objective: HeadObjective, model: Head) -> None:
    """Scale what a head begins with: features to a mean square of 1, and logits to a deviation of 1."""
    import torch

    rows = torch.from_numpy(objective.rows(0, objective.row)).to(model.fc.weight.device)
    with torch.no_grad():
        features, _ = objective.reading(rows)
        model.fc.weight /= model.fc(features.float()).pow(2).mean().sqrt().clamp(min=1e-6)
        outputs, learned = objective.ahead(model, rows, features)
        logits = outputs[0][learned][:_START_PLACES] @ model.output.T
        model.output_norm.weight.fill_(1 / float(logits.std().clamp(min=1e-6)))


def require_head(file: ModelFile, target: ModelFile) -> None:
    """Refuse to continue with a file that is no head for a target.

    Raises:
        UnsupportedModel: it is none.
    """
    if not reads(file, target):
        raise UnsupportedModel(
            f"{file.path.name} is no head for {target.path.name}",
            hint="give a file that `edge-spec drafter make --kind head` made for this model, or begin without one",
        )


def continue_head(file: ModelFile, model: Head) -> None:
    """Give a head the weights of a file, as they are after the rounding to 4 bits.

    Raises:
        UnsupportedModel: the file holds another kind of head.
    """
    import torch

    for name, weight in model.named_weights().items():
        rows = rows_of(file, name)
        if rows is None or rows.size != weight.numel():
            raise UnsupportedModel(
                f"{name} of {file.path.name} does not fit this model", hint="begin without this head"
            )
        with torch.no_grad():
            weight.copy_(torch.from_numpy(rows).view_as(weight))
