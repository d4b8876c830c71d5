"""From messages to a prompt, by the template that came with the model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from edge_spec.errors import PromptError

__all__ = ["render_chat"]


def render_chat(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    bos: str,
    eos: str,
    answer: bool = True,
    options: Mapping[str, Any] | None = None,
) -> str:
    """The prompt after which the assistant's answer is expected.

    Templates come from model files and are not trusted: they run in Jinja's sandbox and cannot change what they are
    given.

    Args:
        messages: ``{"role": ..., "content": ...}`` each, and further keys that the template understands.
        bos, eos: text of the tokens that begin and end a text; empty if there are none.
        answer: end with what comes before an answer.
        options: further names for the template, such as ``tools`` or ``enable_thinking``.

    Raises:
        PromptError: the template is broken, or refuses the messages.
    """
    from jinja2.exceptions import SecurityError, TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Refused(TemplateError):
        pass

    def refuse(message: str) -> Any:
        raise Refused(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals |= {"raise_exception": refuse, "strftime_now": lambda form: datetime.now().strftime(form)}
    # Jinja's own filter escapes for HTML, but this is for a model.
    environment.filters["tojson"] = _to_json
    try:
        return environment.from_string(template).render(
            {
                **(options or {}),
                "messages": [dict(message) for message in messages],
                "bos_token": bos,
                "eos_token": eos,
                "add_generation_prompt": answer,
            }
        )
    except SecurityError as error:
        raise PromptError(
            f"the model's chat template uses a forbidden operation: {error}", hint="use `raw=True`"
        ) from None
    except Exception as error:  # a template can raise anything
        raise PromptError(
            f"the model's chat template fails: {error}", hint="use `raw=True`, or another model"
        ) from None


def _to_json(value: Any, indent: int | None = None, ensure_ascii: bool = False) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii)
