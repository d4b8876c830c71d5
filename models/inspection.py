"""What a model file is, of either kind, and whether one model can draft for another."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from edge_spec.errors import VocabularyMismatch
from edge_spec.models.gguf.header import read_header
from edge_spec.models.gguf.inspection import inspect_gguf, token_texts
from edge_spec.models.model_file import ModelFile

if TYPE_CHECKING:
    from edge_spec.tokens.kept_tokens import KeptTokens

__all__ = ["check_pair", "inspect", "is_published", "kept_tokens"]


def inspect(path: str | os.PathLike[str]) -> ModelFile:
    """Look at a model file, a GGUF or a published ONNX graph, without loading it.

    The fingerprint hashes the sizes of the files, everything but the weights, and up to 4 KiB from the middle of each
    tensor: a few megabytes instead of everything. Retraining or requantizing a tensor changes it, but an edit of a few
    bytes elsewhere goes unnoticed: it identifies what is cached and is not a signature.

    Raises:
        ModelNotFound, NotAModel, TruncatedModel, UnsupportedModel: it cannot be used; see ``inspect_gguf`` and
            ``inspect_published``.
    """
    if is_published(path):
        from edge_spec.models.onnx.inspection import inspect_published

        return inspect_published(path)
    return inspect_gguf(path)


def is_published(path: str | os.PathLike[str]) -> bool:
    """Whether a path is that of an ONNX graph, or of a folder with one, by its name alone."""
    return Path(path).suffix == ".onnx" or Path(path).is_dir()


def check_pair(target: ModelFile, drafter: ModelFile) -> None:
    """Check that every token id means the same text to both models, or that the drafter lists which ids it knows.

    Token types and the tokens that begin and end a text may differ, as they do between a base model and its chat
    version: only the target's are used.

    Raises:
        VocabularyMismatch: the message says where they first differ, or what is wrong with the list.
        ModelNotFound, TruncatedModel: a file was changed since it was inspected.
    """
    if kept_tokens(target, drafter) is not None:
        return
    of_target, of_drafter = target.vocabulary, drafter.vocabulary
    if of_target.tokens_hash == of_drafter.tokens_hash and target.n_vocab == drafter.n_vocab:
        return
    if of_target.kind != of_drafter.kind:
        what = f"their tokenizers are {of_drafter.kind[:32]!r} and {of_target.kind[:32]!r}"
    else:
        what = _difference(target, drafter)
    raise VocabularyMismatch(
        f"{drafter.path.name} cannot draft for {target.path.name}: {what}",
        hint="choose a drafter of the same model family, or run without one",
    )


def kept_tokens(target: ModelFile, drafter: ModelFile) -> KeptTokens | None:
    """The target's tokens that a drafter knows; None if it knows all.

    Raises:
        VocabularyMismatch: they are tokens of another vocabulary, or the list is not valid.
        ModelNotFound, TruncatedModel: the drafter's file was changed since it was inspected.
    """
    from edge_spec.tokens.kept_tokens import KeptTokens

    trimmed = drafter.trimmed
    if trimmed is None:
        return None
    if trimmed.of != target.vocabulary.tokens_hash:
        raise VocabularyMismatch(
            f"{drafter.path.name} cannot draft for {target.path.name}: its list of tokens belongs to another target",
            hint="choose a drafter that was made for this model (`edge-spec drafter make`), or run without one",
        )
    try:
        ids = [int(token) for token in trimmed.ids.decode()]
        if len(ids) + 1 != drafter.n_vocab:
            raise ValueError(f"{len(ids)} ids, where {drafter.n_vocab - 1} are needed")
        return KeptTokens(ids, target.n_vocab)
    except (ValueError, TypeError) as error:
        raise VocabularyMismatch(
            f"{drafter.path.name} has no valid list of the target's tokens: {error}",
            hint="make the drafter again, or run without one",
        ) from error


def _texts(model: ModelFile) -> Sequence[object]:
    if model.graph is not None:
        from edge_spec.models.onnx.inspection import published_texts

        return published_texts(model)
    array = token_texts(read_header(model.path).metadata)
    return array.decode() if array is not None else ()


def _difference(target: ModelFile, drafter: ModelFile) -> str:
    # Decoded only now that there is something to explain.
    texts = [_texts(model) for model in (drafter, target)]
    sizes = f"they have {drafter.n_vocab} and {target.n_vocab} tokens"
    for token, (ours, theirs) in enumerate(zip(*texts, strict=False)):
        if ours != theirs:
            first = f"token {token} is {str(ours)[:32]!r} in one and {str(theirs)[:32]!r} in the other"
            return first if drafter.n_vocab == target.n_vocab else f"{sizes}, and {first}"
    return sizes if drafter.n_vocab != target.n_vocab else "their tokens differ"
