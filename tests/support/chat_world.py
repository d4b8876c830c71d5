"""A chat model whose distributions are a table: letters, three control tokens, and a template for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from letters import LetterTokenizer

from edge_spec import TextModel
from edge_spec.speculation.drafters.plain import NoDrafter
from edge_spec.speculation.loop import Slot
from edge_spec.speculation.target import Target
from edge_spec.testing import TableModel, random_table

LETTERS = "abcd"
USER, ASSISTANT, SYSTEM, END = range(len(LETTERS), len(LETTERS) + 4)
N_VOCAB = len(LETTERS) + 4
NAMES = {USER: "<u>", ASSISTANT: "<a>", SYSTEM: "<s>", END: "<e>"}
TEMPLATE = (
    "{% for m in messages %}<{{ m.role[0] }}>{{ m.content }}<e>{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"
)


def chat_table(seed: int = 0, order: int = 2, end: float = 0.0) -> Any:
    """Logits that let a model say letters, and end more often the higher ``end`` is; never a control token else."""
    table = random_table(N_VOCAB, order=order, seed=seed, scale=1.5)
    table[..., USER], table[..., ASSISTANT], table[..., SYSTEM] = -1e9, -1e9, -1e9
    table[..., END] += end
    return table


def chat_model(
    table: Any, drafter: Any = None, *, next_limit: Callable[[], int] | None = None, files: Any = None, **model: Any
) -> TextModel:
    """A chat model over a table; ``model`` are arguments of its ``TableModel``."""
    speculator = Slot(TableModel(table, **model), drafter or NoDrafter())
    chosen = next_limit or (lambda: 4)
    return TextModel(
        Target(speculator),
        chosen,
        LetterTokenizer(LETTERS, names=NAMES, end=END),
        mode="test",
        chat_template=TEMPLATE,
        files=files,
    )
