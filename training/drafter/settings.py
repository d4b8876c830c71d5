"""How large a drafter is, and how much it learns."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from edge_spec.errors import SettingsError
from edge_spec.training.settings import Shape, Training

__all__ = ["HEAD", "KINDS", "MODEL", "MakeSettings"]

MODEL, HEAD = KINDS = ("model", "head")
"""A small model of its own, or a head on the target's hidden states."""

_STEP_TOKENS = 8192
_BLOCK = 32
_SMALLER = 4
"""How many times smaller the learning rate is where a head learns on."""


@dataclass(frozen=True, kw_only=True)
class MakeSettings:
    """What ``edge-spec drafter make`` is asked for.

    Attributes:
        tokens: tokens that the target writes.
        vocabulary: tokens of the drafter, one of which stands for all that it does not know.
        layers, width: of the drafter.
        passes: how often the target's answers are read.
        answer_tokens: the most tokens of an answer.
        row, short_row, short_share: length of training rows, of shorter ones, and the share of steps that read these:
            long rows teach it to look back far, and short ones cost less.
        step_tokens: tokens per update.
        learning_rate: the highest.
        held_out: the most prompts that are kept out of training, to measure acceptance on.
        seed: of everything that is drawn.
        inherit: begin with the main directions of the target's embedding, which saves training. Otherwise nothing of
            the target's weights is in the drafter, whatever its license says of them.
        kind: ``model`` or ``head``. ``layers``, ``width``, ``inherit`` and lengths of rows are those of a model.
        steps_ahead: how many tokens behind what the target has read a head learns to draft.
        head_row: length of the training rows of a head.
        read_answers: tokens of answers that others wrote, in the texts, which the target reads besides.

    Raises:
        SettingsError: a value out of its range.
    """

    tokens: int = 2_000_000
    vocabulary: int = 16_384
    layers: int = 2
    width: int = 256
    passes: float = 3.0
    answer_tokens: int = 192
    row: int = 1024
    short_row: int = 256
    short_share: float = 0.8
    step_tokens: int = _STEP_TOKENS
    learning_rate: float = 4e-3
    held_out: int = 24
    seed: int = 1
    inherit: bool = True
    kind: str = MODEL
    steps_ahead: int = 2
    head_row: int = 512
    read_answers: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise SettingsError(f"is {self.kind!r} and must be {' or '.join(KINDS)}", argument="kind")
        least_of = {"tokens": 1, "layers": 1, "answer_tokens": 8, "held_out": 1, "steps_ahead": 1, "head_row": 32}
        least_of["read_answers"] = 0
        for name, least in least_of.items():
            if getattr(self, name) < least:
                raise SettingsError(f"is {getattr(self, name)} and must be at least {least}", argument=name)
        for name in ("vocabulary", "width"):
            if getattr(self, name) < 64 or getattr(self, name) % _BLOCK:
                raise SettingsError(
                    f"is {getattr(self, name)} and must be a multiple of {_BLOCK} and at least 64", argument=name
                )
        if self.step_tokens % self.head_row and self.kind == HEAD:
            raise SettingsError(
                f"is {self.head_row} and must divide the {self.step_tokens} tokens of a step", argument="head_row"
            )
        if self.passes <= 0:
            raise SettingsError(f"is {self.passes:g} and must be above 0", argument="passes")

    def shape(self, n_vocab_target: int) -> Shape:
        """Return the shape of the drafter of a target with so many tokens."""
        head = 64 if self.width % 64 == 0 and self.width > 64 else _BLOCK
        n_head = self.width // head
        n_ff = -(-11 * self.width // (4 * _BLOCK)) * _BLOCK
        return Shape(
            n_layers=self.layers,
            n_embd=self.width,
            n_head=n_head,
            n_head_kv=n_head // 2 if n_head % 2 == 0 else 1,
            n_ff=n_ff,
            n_vocab=min(self.vocabulary, n_vocab_target // _BLOCK * _BLOCK),
            n_ctx=self.row,
        )

    def training(self, n_tokens: int, *, continued: bool = False) -> Training:
        """Return the training on answers that have so many tokens with their prompts.

        Args:
            continued: of weights that have been trained before, which large steps would undo.
        """
        steps = max(1, round(self.passes * n_tokens / self.step_tokens))
        return Training(
            tokens=steps * self.step_tokens,
            step_tokens=self.step_tokens,
            micro_tokens=self.step_tokens,
            learning_rate=self.learning_rate / (_SMALLER if continued else 1),
            warmup=min(50, -(-steps // 10)),
        )

    def as_json(self) -> dict[str, Any]:
        """Return every value by name."""
        return asdict(self)
