"""What is trained and for how long: three named settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any

from edge_spec.errors import SettingsError

__all__ = ["ROLES", "SETTINGS", "SOURCE_WEIGHTS", "HeadShape", "Sampling", "Setting", "Shape", "Training", "setting_of"]

ROLES = ("target", "intermediate", "draft")

SOURCE_WEIGHTS: Mapping[str, float] = MappingProxyType(
    {
        # The family is asked for stories and small talk; long medical answers and old books outnumber them.
        "tinystories-pieces": 4.0,
        "asp-source": 4.0,
        "Synthetic-Persona-Chat": 4.0,
        "chinkara-openqa-dataset": 2.0,
        "Topical-Chat": 1.5,
        "GPTeacher": 1.5,
        "MedQuAD": 0.35,
        "gutenberg": 0.6,
    }
)
"""How often each source's records occur per epoch; 1 for sources not named here."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The sizes of one llama-architecture model.

    Raises:
        SettingsError: a width is not a multiple of 32 (a block of Q4_0), or heads do not divide it.
    """

    n_layers: int
    n_embd: int
    n_head: int
    n_head_kv: int
    n_ff: int
    n_vocab: int
    n_ctx: int
    rope_base: float = 10000.0
    norm_epsilon: float = 1e-5

    def __post_init__(self) -> None:
        for name in ("n_embd", "n_ff", "n_vocab"):
            if getattr(self, name) <= 0 or getattr(self, name) % 32:
                raise SettingsError(f"{name} is {getattr(self, name)}", hint="take a multiple of 32")
        if self.n_embd % self.n_head or self.n_head % self.n_head_kv or self.head_dim % 32:
            raise SettingsError(
                f"{self.n_head} heads and {self.n_head_kv} KV heads do not fit a width of {self.n_embd}",
                hint="take heads of 32 or 64, in equal groups",
            )

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.n_embd // self.n_head

    @property
    def n_params(self) -> int:
        """Number of weights; the output matrix is the embedding."""
        attention = 2 * self.n_embd**2 + 2 * self.n_embd * self.n_head_kv * self.head_dim
        per_layer = attention + 3 * self.n_embd * self.n_ff + 2 * self.n_embd
        return self.n_vocab * self.n_embd + self.n_layers * per_layer + self.n_embd


@dataclass(frozen=True, kw_only=True)
class HeadShape(Shape):
    """The sizes of a head on a target's hidden states: one layer as wide as the target.

    Attributes:
        target_layers: three layers of the target; the head reads what goes into them.
    """

    target_layers: tuple[int, int, int]

    @property
    def n_params(self) -> int:
        """Number of its own weights: embeddings and output rows are the target's."""
        width = self.n_embd
        attention = 2 * width * (width + 2 * self.n_head_kv * self.head_dim) + width**2
        return len(self.target_layers) * width**2 + attention + 3 * width * self.n_ff + 4 * width


@dataclass(frozen=True, kw_only=True)
class Training:
    """One training run.

    Attributes:
        tokens: tokens read in all.
        step_tokens: tokens per update.
        micro_tokens: tokens that go through the model at once; gradients are summed over a step.
        learning_rate: the highest. Warm-up, then constant, then linear decay to a twentieth.
        weight_decay: per step and unit of learning rate. Few texts read many times need far more than the usual
            0.1 (Kim, Kotha, Liang, Hashimoto, "Pre-training under infinite compute", 2025).
        dropout: on the output of each half of a layer.
        warmup: steps of warm-up.
        decay: last share of the steps, in which the learning rate falls.
        quantized: last share of the steps, in which the model computes with the 4-bit weights of its file.
        budget_s: if not None, steps are left out so that the run takes no longer, judging by its first steps.
    """

    tokens: int
    step_tokens: int
    micro_tokens: int
    learning_rate: float
    weight_decay: float = 0.1
    dropout: float = 0.0
    warmup: int = 50
    decay: float = 0.4
    quantized: float = 0.25
    budget_s: float | None = None

    def __post_init__(self) -> None:
        if self.step_tokens % self.micro_tokens or self.tokens < self.step_tokens:
            raise SettingsError(
                f"{self.tokens} tokens in steps of {self.step_tokens} and parts of {self.micro_tokens}",
                hint="step_tokens must be a multiple of micro_tokens, and no more than tokens",
            )

    @property
    def steps(self) -> int:
        """Number of updates."""
        return self.tokens // self.step_tokens


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """What the target writes for the smaller models to learn from.

    Each row begins with training text, mostly up to the beginning of an answer, and continues with the target's own
    tokens: a third of the rows greedily, the rest at temperatures 0.8 and 1.

    Attributes:
        rows, batch: rows in all, and rows written at once.
        prompt, new: tokens given and tokens written, per row.
        share: share of the smaller models' steps that read these rows; the other steps read the training text.
    """

    rows: int
    batch: int
    prompt: int
    new: int
    share: float = 0.6


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A whole family.

    Attributes:
        row: length of a training row, in tokens; also the context length that the files state.
        short_row, short_share: this share of the steps on text read rows of this length, where attention costs less.
        vocabulary_every: every n-th document is used to make the vocabulary.
        valid_share: share of each source's records that is held out.
        limits: how many bytes are read from a source at most; the key ``""`` stands for sources not named.
    """

    name: str
    row: int
    n_vocab: int
    shapes: Mapping[str, Shape]
    trainings: Mapping[str, Training]
    sampling: Sampling
    vocabulary_every: int = 4
    valid_share: float = 0.01
    valid_rows: int = 200
    limits: Mapping[str, int] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=lambda: SOURCE_WEIGHTS)
    short_row: int | None = None
    short_share: float = 0.0

    def __post_init__(self) -> None:
        if set(self.shapes) != set(ROLES) or set(self.trainings) != set(ROLES):
            raise SettingsError(f"the setting {self.name} does not describe {', '.join(ROLES)}")
        if self.n_vocab > 1 << 14:
            raise SettingsError(
                f"a vocabulary of {self.n_vocab} tokens", hint="take at most 16,384: two of 16 bits are flags"
            )
        for training in self.trainings.values():
            rows = (self.row, self.short_row or self.row, self.sampling.prompt + self.sampling.new)
            if any(training.micro_tokens % row for row in rows):
                raise SettingsError(f"micro_tokens is {training.micro_tokens}, not a multiple of the rows' lengths")

    def as_json(self) -> dict[str, Any]:
        """Return every value, for the log of the training."""
        return {
            **{name: value for name, value in vars(self).items() if isinstance(value, int | float | str)},
            "shapes": {role: asdict(shape) for role, shape in self.shapes.items()},
            "trainings": {role: asdict(training) for role, training in self.trainings.items()},
            "sampling": asdict(self.sampling),
            "limits": dict(self.limits),
            "weights": dict(self.weights),
        }


def setting_of(name: str) -> Setting:
    """Return the setting with a name.

    Raises:
        SettingsError: there is none with that name.
    """
    if name not in SETTINGS:
        raise SettingsError(f"there is no setting {name!r}", hint=f"choose one of {', '.join(SETTINGS)}")
    return SETTINGS[name]


def _shape(n_vocab: int, n_ctx: int, n_layers: int, n_embd: int, n_head: int, n_head_kv: int, n_ff: int) -> Shape:
    return Shape(
        n_layers=n_layers, n_embd=n_embd, n_head=n_head, n_head_kv=n_head_kv, n_ff=n_ff, n_vocab=n_vocab, n_ctx=n_ctx
    )


_SMALL = Setting(
    # Minutes on two cores. It shows that every part works; its models write nonsense.
    name="small",
    row=256,
    n_vocab=1024,
    shapes={
        "target": _shape(1024, 256, 3, 128, 4, 2, 352),
        "intermediate": _shape(1024, 256, 2, 64, 2, 1, 192),
        "draft": _shape(1024, 256, 1, 32, 1, 1, 96),
    },
    trainings={
        "target": Training(tokens=1 << 20, step_tokens=4096, micro_tokens=4096, learning_rate=6e-3, warmup=15),
        "intermediate": Training(tokens=3 << 18, step_tokens=4096, micro_tokens=4096, learning_rate=8e-3, warmup=15),
        "draft": Training(tokens=3 << 18, step_tokens=4096, micro_tokens=4096, learning_rate=1e-2, warmup=15),
    },
    sampling=Sampling(rows=1024, batch=256, prompt=64, new=64),
    vocabulary_every=1,
    valid_share=0.03,
    valid_rows=40,
    limits=MappingProxyType({"": 300_000}),
)

_CPU = Setting(
    # Two hours on two cores that multiply in 16 bits. With so little arithmetic a larger target would see too few
    # tokens.
    name="cpu",
    row=1024,
    short_row=256,
    short_share=0.7,
    n_vocab=8192,
    shapes={
        "target": _shape(8192, 1024, 8, 256, 4, 2, 704),
        "intermediate": _shape(8192, 1024, 3, 128, 2, 1, 352),
        # Nearly all of it is the embedding, and a narrower one drafts worse. Its layer is a fifth of the others'.
        "draft": _shape(8192, 1024, 1, 96, 3, 1, 288),
    },
    trainings={
        "target": Training(tokens=1350 << 13, step_tokens=8192, micro_tokens=8192, learning_rate=3e-3),
        "intermediate": Training(tokens=750 << 13, step_tokens=8192, micro_tokens=8192, learning_rate=5e-3),
        "draft": Training(tokens=750 << 13, step_tokens=8192, micro_tokens=8192, learning_rate=7e-3),
    },
    sampling=Sampling(rows=4096, batch=256, prompt=128, new=128, share=0.7),
    valid_rows=40,
    # So few tokens are read that sources which are large and seldom asked for get fewer of them.
    weights=MappingProxyType(
        {
            **SOURCE_WEIGHTS,
            "gutenberg": 0.15,
            "MedQuAD": 0.25,
            "OpenTriviaQA": 0.5,
            "tldr": 0.3,
            "dstc8-schema-guided-dialogue": 0.5,
        }
    ),
)

_GPU = Setting(
    # About 23 minutes on one H200-class accelerator; README.md has the arithmetic.
    name="gpu",
    row=2048,
    n_vocab=8192,
    shapes={
        "target": _shape(8192, 2048, 12, 640, 10, 2, 1728),
        "intermediate": _shape(8192, 2048, 5, 320, 5, 1, 864),
        "draft": _shape(8192, 2048, 2, 128, 4, 1, 352),
    },
    trainings={
        "target": Training(
            tokens=3000 << 17,
            step_tokens=1 << 17,
            micro_tokens=1 << 16,
            learning_rate=2e-3,
            weight_decay=0.5,
            dropout=0.1,
            budget_s=660,
        ),
        "intermediate": Training(
            tokens=1200 << 17, step_tokens=1 << 17, micro_tokens=1 << 16, learning_rate=3e-3, budget_s=190
        ),
        "draft": Training(
            tokens=1200 << 17, step_tokens=1 << 17, micro_tokens=1 << 16, learning_rate=4e-3, budget_s=120
        ),
    },
    sampling=Sampling(rows=10 * 4096, batch=4096, prompt=128, new=384),
)

SETTINGS: Mapping[str, Setting] = MappingProxyType({setting.name: setting for setting in (_SMALL, _CPU, _GPU)})
"""All settings by name."""
