"""What an accelerator needs to write answers and to teach a head, and has no tokenizer for: prompts in token ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edge_spec.errors import ModelFileError, PromptError
from edge_spec.generation.prompts import PromptBuilder
from edge_spec.models import ModelFile
from edge_spec.training.checkpoint import arrays_of, ids_type, whole_file

__all__ = ["Pack", "pack_prompts", "read_pack", "users_frame"]

_MARK = "edge-spec asks here"


@dataclass(frozen=True)
class Pack:
    """Prompts, and what a target writes its own between.

    Attributes:
        tokens: of all prompts, one after the other.
        lengths: of the prompts.
        before, after: everything before a user's first words and after them; empty where the target writes no
            conversations.
        ends: tokens that end an answer.
        target: fingerprint of the model whose tokens these are.
    """

    tokens: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    before: npt.NDArray[np.int64]
    after: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    target: str

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt."""
        return int(self.lengths.max())

    @property
    def prompts(self) -> list[list[int]]:
        """Every prompt in token ids."""
        return [part.tolist() for part in np.split(self.tokens, np.cumsum(self.lengths)[:-1])]


def users_frame(builder: PromptBuilder) -> tuple[list[int], list[int]]:
    """Return everything before a user's first words, and everything after them; nothing if there is no template."""
    if builder.chat_template is None:
        return [], []
    try:
        before, mark, after = builder.render([{"role": "user", "content": _MARK}]).partition(_MARK)
    except PromptError:
        return [], []
    if not (mark and before):
        return [], []
    return builder.tokenize_rendered(before), builder.tokenize(after, add_special=False)


def pack_prompts(path: Path, builder: PromptBuilder, target: ModelFile, texts: Sequence[str], *, longest: int) -> int:
    """Write a pack of the prompts that have at most ``longest`` tokens; returns how many these are.

    Raises:
        PromptError: there are none.
    """
    prompts = [prompt for prompt in map(builder.tokens_of, texts) if 1 < len(prompt) <= longest]
    if not prompts:
        raise PromptError(
            f"none of {len(texts):,} prompts has 2 to {longest} tokens",
            hint="raise --prompt-tokens, or give more texts",
        )
    before, after = users_frame(builder)
    narrow = ids_type(target.n_vocab)
    with whole_file(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(
            file,
            tokens=np.array([token for prompt in prompts for token in prompt], narrow),
            lengths=np.array([len(prompt) for prompt in prompts], np.int32),
            before=np.array(before, narrow),
            after=np.array(after, narrow),
            ends=np.array([token for token in range(target.n_vocab) if builder.ends(token)], narrow),
            target=np.array(target.fingerprint),
        )
    return len(prompts)


def read_pack(path: Path, target: ModelFile) -> Pack:
    """Return a pack.

    Raises:
        ModelFileError: there is none, or it is damaged, or made for another model.
    """
    hint = "make it with `edge-spec drafter pack`"
    with arrays_of(path, "prompts", hint=hint) as found:
        arrays = dict(found)
        fingerprint = str(arrays.pop("target"))
        pack = Pack(**{name: array.astype(np.int64) for name, array in arrays.items()}, target=fingerprint)
    if pack.target != target.fingerprint:
        raise ModelFileError(f"{path} was made for another model than {target.path.name}", hint=hint)
    return pack
