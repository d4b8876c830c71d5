"""What an accelerator needs to write answers and to teach a head, and has no tokenizer for: prompts in token ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edge_spec.errors import BAD_RECORD, ModelFileError, PromptError
from edge_spec.generation.prompts import PromptBuilder
from edge_spec.training.checkpoint import whole_file

__all__ = ["Pack", "pack_prompts", "read_pack", "users_frame"]

_MARK = "edge-spec asks here"


@dataclass(frozen=True)
class Pack:
    """Prompts, and what a target writes its own between.

    Attributes:
        tokens: of all prompts, one after the other.
        lengths: of the prompts.
        before, after: everything before a user's first words and behind them; empty where the target writes no
            conversations.
        ends: tokens that end an answer.
    """

    tokens: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    before: npt.NDArray[np.int64]
    after: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]

    @property
    def prompts(self) -> list[list[int]]:
        """Every prompt in token ids."""
        return [part.tolist() for part in np.split(self.tokens, np.cumsum(self.lengths)[:-1])]


def users_frame(builder: PromptBuilder) -> tuple[list[int], list[int]]:
    """Return everything before a user's first words, and everything behind them; nothing if there is no template."""
    if builder.chat_template is None:
        return [], []
    try:
        before, mark, after = builder.render([{"role": "user", "content": _MARK}]).partition(_MARK)
    except PromptError:
        return [], []
    if not (mark and before):
        return [], []
    return builder.tokenize_rendered(before), builder.tokenize_rendered(after)


def pack_prompts(path: Path, builder: PromptBuilder, texts: Sequence[str], *, n_vocab: int, longest: int) -> int:
    """Write a pack of the prompts that have at most ``longest`` tokens; returns how many these are."""
    prompts = [prompt for prompt in map(builder.tokens_of, texts) if 1 < len(prompt) <= longest]
    before, after = users_frame(builder)
    narrow = np.uint16 if n_vocab <= 1 << 16 else np.uint32
    with whole_file(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(
            file,
            tokens=np.array([token for prompt in prompts for token in prompt], narrow),
            lengths=np.array([len(prompt) for prompt in prompts], np.int32),
            before=np.array(before, narrow),
            after=np.array(after, narrow),
            ends=np.array([token for token in range(n_vocab) if builder.ends(token)], narrow),
        )
    return len(prompts)


def read_pack(path: Path) -> Pack:
    """Return a pack.

    Raises:
        ModelFileError: there is none, or it is damaged.
    """
    try:
        with np.load(path) as found:
            return Pack(**{name: found[name].astype(np.int64) for name in found.files})
    except (OSError, *BAD_RECORD) as error:
        hint = "make it with `edge-spec drafter pack`"
        raise ModelFileError(f"{path} holds no prompts ({error})", hint=hint) from error
