"""From messages to a prompt, by the template that came with the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edge_spec.errors import PromptError

__all__ = ["render_chat"]


def render_chat(template: str, messages: Sequence[Mapping[str, str]], *, bos: str, eos: str) -> str:
    """The prompt after which the assistant's answer is expected.

    Templates come from model files, that is from strangers: they run in Jinja's sandbox and cannot change
    what they are given.

    Args:
        messages: ``{"role": ..., "content": ...}`` each.
        bos, eos: text of the tokens that begin and end a text; empty if there are none.

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
    environment.globals["raise_exception"] = refuse
    try:
        return environment.from_string(template).render(
            messages=[dict(message) for message in messages],
            bos_token=bos,
            eos_token=eos,
            add_generation_prompt=True,
        )
    except SecurityError as error:
        raise PromptError(f"the model's chat template does what it must not: {error}", hint="use --raw") from None
    except Exception as error:  # whatever a stranger's template may come to
        raise PromptError(f"the model's chat template fails: {error}", hint="use --raw, or another model") from None
