"""The switch for thoughts: what a chat template is told so that the model thinks, how much, or not at all."""

from __future__ import annotations

from typing import Any

from edge_spec.errors import SettingsError
from edge_spec.generation.thoughts import THOUGHTS
from edge_spec.options import written

__all__ = ["Think", "template_options_of", "think_of"]

Think = bool | str | None
"""Whether a model is to think, or how much, in a word that its template knows; None leaves it to the template."""

_SWITCHES = ("enable_thinking", "thinking")
"""Names of templates' switches: of most, and of DeepSeek's and Granite's."""

_EFFORT = "reasoning_effort"
_WORDS = {"on": True, "true": True, "off": False, "false": False, "none": False}
_LONGEST_LEVEL = 32


def think_of(value: object) -> Think:
    """Return the switch that a value means: True, ``on``, False, ``off``, or a level such as ``low``.

    Raises:
        SettingsError: it means none.
    """
    if value is None or isinstance(value, bool):
        return value
    word = value.strip().lower() if isinstance(value, str) else ""
    if not word.isidentifier() or len(word) > _LONGEST_LEVEL:
        problem = f"is {written(value)} and must be on, off, or a level such as low"
        raise SettingsError(problem, argument="think")
    return _WORDS.get(word, word)


def template_options_of(template: str | None, think: Think) -> dict[str, Any]:
    """Return the names that tell a chat template how to think, and their values.

    A model that always thinks, or never does, needs none to be told so.

    Args:
        template: None for a model without one.

    Raises:
        SettingsError: the template cannot be told that.
    """
    if think is None:
        return {}
    if template is None:
        raise _refused("needs a chat template, and none is used here", "leave it out")
    names = _names(template)
    switch = next((name for name in _SWITCHES if name in names), None)
    has_levels, has_thoughts = _EFFORT in names, any(marks.opening in template for marks in THOUGHTS)
    if isinstance(think, str):
        if has_levels:
            return {_EFFORT: think} | ({switch: True} if switch else {})
        known = "knows only on and off" if switch else "has no switch for thoughts"
        raise _refused(f"is {think!r}, and this model's chat template {known}", "leave it out")
    if switch:
        return {switch: think}
    if think and not (has_levels or has_thoughts):
        raise _refused("is on, and this model's chat template knows no thoughts", "leave it out")
    if not think and has_levels:
        raise _refused("is off, and this model's chat template only knows how much it thinks", "use low")
    if not think and has_thoughts:
        raise _refused("is off, and this model always thinks: its chat template has no switch", "leave it out")
    return {}


def _names(template: str) -> frozenset[str]:
    # Jinja takes longer to load than most commands run.
    from edge_spec.generation.template_sandbox import names_in

    try:
        return names_in(template)
    except Exception:  # a template can raise anything; what renders it says so
        return frozenset()


def _refused(what: str, hint: str) -> SettingsError:
    return SettingsError(what, argument="think", hint=hint)
