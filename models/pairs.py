"""Check whether one model can draft for another: which token ids mean the same to both.

Vocabularies of one family often differ in size: tables are padded to a round number of rows, and later models use ids
that were reserved before. Such models are pairs. Where an id is not an ordinary token in either vocabulary (padding,
reserved, control or added tokens), it may differ or be missing; the drafter then never proposes it, and reads its own
padding or unknown token instead. A difference between ordinary tokens is a mismatch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from edge_spec.errors import VocabularyMismatch
from edge_spec.models.gguf.header import GGUFArray, read_header
from edge_spec.models.gguf.inspection import token_texts
from edge_spec.models.heads import is_head
from edge_spec.models.inspection import inspect
from edge_spec.models.model_file import ModelFile
from edge_spec.models.mtp import mtp_head

if TYPE_CHECKING:
    from edge_spec.tokens.kept_tokens import KeptTokens

__all__ = ["check_pair", "drafter_file", "kept_tokens"]

_MIN_SHARED = 7 / 8
"""The least share of common ids with equal meaning; below it the vocabularies are alike by chance."""

_ORDINARY = frozenset({1, 6})
"""The types in GGUFs of tokens for texts and for single bytes."""

_RESERVED = re.compile(r"\[PAD\d+\]|<unused\d+>|<\|[^|]*\|>")
"""Texts of tokens that are not ordinary, for files without types."""

_SPARE = ("tokenizer.ggml.padding_token_id", "tokenizer.ggml.unknown_token_id", "tokenizer.ggml.bos_token_id")


def drafter_file(path: Path, target: ModelFile, read_file: Callable[[Path], ModelFile] = inspect) -> ModelFile:
    """Read the file of a drafter; a target's own file stands for its MTP layer, if it has one."""
    file = read_file(path)
    return (mtp_head(file) if file.fingerprint == target.fingerprint else None) or file


def check_pair(target: ModelFile, drafter: ModelFile, *, verifier: ModelFile | None = None) -> None:
    """Check that token ids mean the same text to both models, or that the drafter lists which ids it knows.

    Token types and the tokens that begin and end a text may differ, as they do between a base model and its chat
    version: only the target's are used.

    Args:
        verifier: the model that verifies the drafts, where it is not the target itself.

    Raises:
        VocabularyMismatch: the message says where they first differ, or what is wrong with the list.
        UnsupportedModel: a head on another model's hidden states, or one that is not whole.
        ModelNotFound, TruncatedModel: a file was changed since it was inspected.
    """
    lists_tokens = drafter.trimmed is not None
    if lists_tokens:
        kept_tokens(target, drafter)
    if is_head(drafter):
        from edge_spec.models.head_tensors import require_whole

        require_whole(drafter, verifier or target)
    if not lists_tokens:
        kept_tokens(target, drafter)


def kept_tokens(target: ModelFile, drafter: ModelFile) -> KeptTokens | None:
    """Return the target's tokens that a drafter knows; None if the two vocabularies are the same.

    Raises:
        VocabularyMismatch: they are tokens of another vocabulary, or the list is not valid.
        ModelNotFound, TruncatedModel: the drafter's file was changed since it was inspected.
    """
    if drafter.trimmed is not None:
        return _listed(target, drafter)
    of_target, of_drafter = target.vocabulary, drafter.vocabulary
    if is_head(drafter):
        if of_drafter.n_tokens and of_drafter.tokens_hash != of_target.tokens_hash:
            # It lists all tokens of its target.
            _shared(target, drafter)
        return _drafted(target, drafter)
    if of_target.tokens_hash == of_drafter.tokens_hash and target.n_vocab == drafter.n_vocab:
        return None
    if of_target.kind != of_drafter.kind:
        raise _mismatch(target, drafter, f"their tokenizers are {of_drafter.kind[:32]!r} and {of_target.kind[:32]!r}")
    return _shared(target, drafter)


def _listed(target: ModelFile, drafter: ModelFile) -> KeptTokens:
    """Return the tokens that the file of a trimmed drafter lists."""
    from edge_spec.tokens.kept_tokens import KeptTokens

    trimmed = drafter.trimmed
    assert trimmed is not None
    if trimmed.of != target.vocabulary.tokens_hash:
        raise VocabularyMismatch(
            f"{drafter.path.name} cannot draft for {target.path.name}: it lists tokens of another vocabulary",
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


def _drafted(target: ModelFile, head: ModelFile) -> KeptTokens | None:
    """Return the tokens that a published head drafts; None if these are all. It reads all of them."""
    from edge_spec.models.head_tensors import drafted_tokens
    from edge_spec.tokens.kept_tokens import KeptTokens

    ids = drafted_tokens(head, target)
    return None if ids is None else KeptTokens(sorted(ids.tolist()), target.n_vocab, reads_all=True)


def _shared(target: ModelFile, drafter: ModelFile) -> KeptTokens:
    """Return the ids that mean the same in two vocabularies that differ."""
    from edge_spec.tokens.kept_tokens import KeptTokens

    ours, theirs = _Table(drafter), _Table(target)
    n_shared = min(ours.n_tokens, theirs.n_tokens)
    differing = ours.differing(theirs, n_shared)
    for token in (*differing, *range(n_shared, max(ours.n_tokens, theirs.n_tokens))):
        if ours.is_ordinary(token) or theirs.is_ordinary(token):
            raise _mismatch(target, drafter, _difference(ours, theirs, token))
    if not n_shared or len(differing) > (1 - _MIN_SHARED) * n_shared:
        raise _mismatch(target, drafter, _difference(ours, theirs, differing[0] if differing else 0))
    kept = sorted({*range(n_shared)} - {*differing})
    return KeptTokens(kept, target.n_vocab, own=kept, other=_spare_token(drafter))


class _Table:
    """The tokens of a model by id; texts are decoded only where they are needed."""

    def __init__(self, model: ModelFile) -> None:
        self._model = model
        self._raw = b""
        self._types: Sequence[object] = ()
        self.n_tokens = model.n_vocab
        if model.graph is None:
            metadata = read_header(model.path).metadata
            self._array, types = token_texts(metadata), metadata.get("tokenizer.ggml.token_type")
            self.n_tokens = self._array.length if self._array is not None else 0
            self._raw = self._array.raw() if self._array is not None else b""
            if isinstance(types, GGUFArray) and types.length == self.n_tokens:
                self._types = types.decode()

    @cached_property
    def texts(self) -> Sequence[object]:
        """By id, ``[n_tokens]``."""
        if self._model.graph is not None:
            from edge_spec.models.onnx.inspection import published_texts

            return published_texts(self._model)
        return self._array.decode() if self._array is not None else ()

    def differing(self, other: _Table, n: int) -> list[int]:
        """Return those of the first ``n`` ids whose texts differ."""
        shorter, longer = sorted((self._raw, other._raw), key=len)
        if shorter and longer.startswith(shorter):
            return []
        return [token for token in range(n) if self.texts[token] != other.texts[token]]

    def is_ordinary(self, token: int) -> bool:
        """Return whether an id exists and stands for text, not for something reserved."""
        if token >= self.n_tokens:
            return False
        if self._types:
            return self._types[token] in _ORDINARY
        return _RESERVED.fullmatch(str(self.texts[token])) is None


def _spare_token(drafter: ModelFile) -> int:
    """Return the drafter's id for tokens that it lacks: its padding, unknown or begin-of-text token."""
    if drafter.graph is None:
        metadata = read_header(drafter.path).metadata
        found = (metadata.get(key) for key in _SPARE)
        return next((token for token in found if type(token) is int and 0 <= token < drafter.n_vocab), 0)
    bos = drafter.graph.bos
    return bos if bos is not None and 0 <= bos < drafter.n_vocab else 0


def _difference(ours: _Table, theirs: _Table, token: int) -> str:
    sizes = f"they have {ours.n_tokens} and {theirs.n_tokens} tokens"
    shown = [repr(str(table.texts[token])[:32]) if token < table.n_tokens else "" for table in (ours, theirs)]
    if all(shown):
        first = f"token {token} is {shown[0]} in one and {shown[1]} in the other"
        return first if ours.n_tokens == theirs.n_tokens else f"{sizes}, and {first}"
    return f"{sizes}, and token {token} is {''.join(shown)} in one only" if any(shown) else sizes


def _mismatch(target: ModelFile, drafter: ModelFile, what: str) -> VocabularyMismatch:
    return VocabularyMismatch(
        f"{drafter.path.name} cannot draft for {target.path.name}: {what}",
        hint="choose a drafter of the same model family, or run without one",
    )
