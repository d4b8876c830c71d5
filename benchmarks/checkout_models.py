"""Models and conversations of the installed edge-spec, as its users open them; for ``checkout_worker.py``.

What two versions spell differently stands in a table, ``RENAMED``. What is refused is a result as well: the kind of
the error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import signature
from typing import Any

from checkout_commands import RENAMED

import edge_spec

__all__ = ["Conversations", "attempt", "each_model", "facts", "opened", "written"]


# Older versions asked for methods, newer ones for a subclass.
_Drafter: Any = getattr(edge_spec, "Drafter", object)


class Repeat(_Drafter):  # type: ignore[misc]
    """A drafter as users write them: guesses that the last token comes again. It has all that any version asks for."""

    name = "repeat"

    def begin(self, prompt: Sequence[int], sampler: Any) -> None:
        self.text = list(prompt)

    def draft(self, limit: int) -> edge_spec.Tree:
        return edge_spec.Tree.sequence([self.text[-1]] * limit)

    def accept(self, tokens: Sequence[int]) -> None:
        self.text.extend(tokens)

    def rollback(self, length: int) -> None:
        del self.text[length:]

    def close(self) -> None:
        """Holds nothing."""


def opened(arguments: Mapping[str, Any], mode: str) -> edge_spec.TextModel:
    """``edge_spec.load`` with arguments under their older names; the mode ``repeat`` is our own."""
    known = signature(edge_spec.load).parameters
    named = {name if name in known else RENAMED.get(name, name): value for name, value in arguments.items()}
    own = edge_spec.Mode(name="repeat", build=lambda models: Repeat(), limit=2)
    return edge_spec.load("demo", speculation=own if mode == "repeat" else mode, **named)


def each_model(part: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], edge_spec.TextModel]]:
    """Every model of a part of the task in each of its modes: name, settings, and the model while it is open."""
    for setup in part["setups"]:
        for mode in setup["modes"]:
            with opened(setup["load"], mode) as model:
                yield f"{setup['name']} {mode}", setup, model


def attempt(work: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """What comes of a call, or the kind of its error."""
    try:
        return work(*arguments, **options)
    except Exception as error:
        return {"error": type(error).__name__}


def facts(model: edge_spec.TextModel) -> dict[str, Any]:
    """What a model says of itself, and what was reduced or dropped for lack of memory."""
    profile = model.profile
    found = {name: getattr(model, name) for name in ("mode", "lossless", "identity", "n_ctx", "n_vocab")}
    found["profile"] = {"name": profile.name, "engine": profile.engine, **dict(profile.facts)}
    return found | {"notes": len(model.notes), "given_up": len(_attribute(model, "given_up"))}


def written(reply: edge_spec.Generation, *, counted: bool) -> dict[str, Any]:
    """A reply, read to its end; with counts of drafts where these do not follow the clock."""
    n_pieces = sum(1 for _ in reply)
    found = {name: getattr(reply, name) for name in ("text", "token_ids", "finish_reason")}
    found |= {"prompt_tokens": len(reply.prompt), "notices": len(reply.notices), "seed": reply.settings.seed}
    if counted:
        found["pieces"] = n_pieces
        found |= {name: getattr(reply.statistics, name) for name in ("rounds", "drafted", "accepted", "tokens")}
    return found


class Conversations:
    """Conversations by name on one model, step by step.

    Args:
        counted: whether counts of drafts are compared, see ``written``, and sizes of their caches.
    """

    def __init__(self, model: edge_spec.TextModel, *, counted: bool) -> None:
        self._model = model
        self._counted = counted
        self._notices: list[str] = []
        self.sessions: dict[str, Any] = {}

    def steps(self, script: Sequence[tuple[list[Any], dict[str, Any]]]) -> list[Any]:
        """What comes of each step: a list of ``step``'s arguments, and options."""
        return [attempt(self.step, *arguments, **options) for arguments, options in script]

    def step(self, who: str, action: str, *arguments: Any, **options: Any) -> dict[str, Any]:
        """One call of a conversation, or ``begin``, ``load``, and ``cancel``: a question whose answer is stopped."""
        before, done = len(self._notices), None
        if action == "begin":
            self.sessions[who] = self._model.chat(*arguments, on_notice=self._notices.append, **options)
        elif action == "load":
            self.sessions[who] = edge_spec.ChatSession.load(self._model, *arguments, on_notice=self._notices.append)
        elif action == "cancel":
            text, n_pieces = arguments
            done = self.sessions[who].send(text, **options)
            if self._counted:  # else where it stops would follow the clock
                for _ in range(n_pieces):
                    next(done, None)
                done.cancel()
        else:
            done = getattr(self.sessions[who], action)(*arguments, **options)
        if hasattr(done, "token_ids"):
            done = written(done, counted=self._counted)
        elif done is not None:
            done = [message.content for message in done]
        session = self.sessions[who]
        found = {
            "done": done,
            "told": len(self._notices) - before,
            "tokens": session.n_tokens,
            "seen": session.n_seen,
            "messages": [[each.role, each.content, each.finish_reason, each.attempt] for each in session.messages],
        }
        return found | ({"laid_aside": _attribute(self._model, "held_bytes")} if self._counted else {})


def _attribute(owner: object, name: str) -> Any:
    """An attribute under its older or its newer name."""
    return getattr(owner, name if hasattr(owner, name) else RENAMED[name])
