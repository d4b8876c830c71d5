"""Every mode writes the same text: models are loaded once per mode and asked the same questions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import edge_spec
from edge_spec import TextModel
from edge_spec.generation.reply import Reply

__all__ = ["check_modes_agree", "questions", "wishes"]

_WISHES: tuple[dict[str, Any], ...] = (
    {"temperature": 0},
    {"temperature": 0.9, "top_k": 40, "top_p": 0.9, "min_p": 0.02},
    {"temperature": 1.4, "top_k": 0, "repeat_penalty": 1.2},
    {"mirostat": 2},
    {"json_schema": '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}'},
)


def questions(prompts: Sequence[str], temperatures: Sequence[float], **asked: Any) -> list[dict[str, Any]]:
    """Every prompt at every temperature, each prompt with a seed of its own."""
    return [
        {"prompt": prompt, "seed": seed, "temperature": temperature, **asked}
        for seed, prompt in enumerate(prompts)
        for temperature in temperatures
    ]


def wishes(prompts: Sequence[str], max_tokens: int) -> list[dict[str, Any]]:
    """Every prompt as a text to be continued, with samplers of each kind and with a grammar."""
    return [
        {
            "prompt": prompt,
            "raw": True,
            "max_tokens": max_tokens,
            "seed": 3,
            "ignore_eos": "json_schema" not in wish,
            **wish,
        }
        for prompt in prompts
        for wish in _WISHES
    ]


def check_modes_agree(
    modes: Iterable[str],
    asked: Sequence[Mapping[str, Any]],
    look: Callable[[str, TextModel], object],
    target: Any,
    **loading: Any,
) -> dict[str, list[Reply]]:
    """Asserts that all modes write the same token ids.

    Args:
        asked: arguments of ``generate``, a reply each.
        look: is told the mode and the model once it is loaded.
        target: what is loaded, with the arguments ``loading`` of ``load``.

    Returns:
        The replies of every mode.
    """
    replies: dict[str, list[Reply]] = {}
    for mode in modes:
        with edge_spec.load(target, speculation=mode, **{"n_ctx": 256, "n_threads": 1, **loading}) as model:
            look(mode, model)
            replies[mode] = []
            for question in asked:
                replies[mode].append(model.generate(**question))
                replies[mode][-1].read()
    texts = {mode: [reply.token_ids for reply in found] for mode, found in replies.items()}
    expected = next(iter(texts.values()))
    assert any(expected)
    for mode, found in texts.items():
        assert found == expected, mode
    return replies
