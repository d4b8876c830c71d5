"""A conversation with a model."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from edge_spec.arguments import require_whole
from edge_spec.chat.conversation import Conversation
from edge_spec.chat.messages import Message
from edge_spec.chat.reply import ChatReply
from edge_spec.chat.tokenization import Scribe
from edge_spec.chat.window import WindowContext
from edge_spec.errors import BudgetExceeded, PromptError, SettingsError
from edge_spec.generation.session_cache import Caches
from edge_spec.generation.text_stream import stops_of
from edge_spec.model import TextModel

__all__ = ["ChatSession"]

StrPath = str | os.PathLike[str]

_NO_SAMPLING = ("max_tokens", "stop", "grammar", "json_schema")


class ChatSession:
    """Remembers what was said; one answer is written at a time, each an iterator of pieces.

    What the models have read already they do not read again: the next answer begins after as much time as the new
    text needs. Any number of sessions can take turns on one model; those that wait are laid aside with their caches.
    A conversation that outgrows the context loses its oldest turns for the model, not for ``messages``, and says so.

    The text of an answer depends on the messages and what was drawn in them, the settings, the seed, and the
    model's numerics profile; never on drafts.

    Args:
        model: what answers.
        system: the system message.
        messages: a conversation to go on with.
        on_notice: told what the reader should know, in a sentence; also in ``notices`` of a reply.
        template_options: further names for the model's chat template, such as ``tools`` or ``enable_thinking``.
        max_tokens, stop, seed, **sampling: defaults for every answer, see ``TextModel.generate``.

    Raises:
        PromptError: the model has no chat template, or messages that it refuses.
        SettingsError: a setting is out of its range or unknown.
    """

    def __init__(
        self,
        model: TextModel,
        *,
        system: str | None = None,
        messages: Iterable[Message | Mapping[str, Any]] = (),
        on_notice: Callable[[str], object] = lambda sentence: None,
        template_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        if not model.has_chat_template:
            raise PromptError("this model has no chat template", hint="use a chat model, or 'run --raw'")
        self.caches: Caches | None = None
        self.on_notice = on_notice
        self._model = model
        self._scribe = Scribe(model, template_options or {})
        self._lock = threading.RLock()
        self._writing: weakref.ref[ChatReply] | None = None
        # Whether the models have read it before, so that reading it again deserves a notice.
        self._was_read = False
        self._options: dict[str, Any] = {}
        self.set(**{"seed": model.sampler_settings().seed, **options})
        given = [message if isinstance(message, Message) else Message.from_json(message) for message in messages]
        first = [Message(role="system", content=system)] if system is not None else []
        self._told = self._scribe.read([*first, *given])

    @property
    def model(self) -> TextModel:
        """What answers."""
        return self._model

    @property
    def messages(self) -> tuple[Message, ...]:
        """All that was said, the system message included."""
        return self._told.messages

    @property
    def system(self) -> str | None:
        """The system message."""
        return self._told.system.content if self._told.system else None

    @property
    def options(self) -> dict[str, Any]:
        """Settings of the next answer; change them with ``set``."""
        return dict(self._options)

    @property
    def n_tokens(self) -> int:
        """Tokens of the whole conversation."""
        return len(self._told.tokens)

    @property
    def n_seen(self) -> int:
        """Tokens of it that the model sees: what the context holds."""
        return max(self.n_tokens - self._told.window.n_forgotten, 0)

    @property
    def n_turns(self) -> int:
        """Questions asked so far."""
        return len(self._told.turns)

    def set(self, **options: Any) -> None:
        """Change settings of the answers to come; None brings a default back.

        Raises:
            SettingsError: a value is out of its range, or there is no such setting; nothing is changed.
        """
        changed = {name: value for name, value in {**self._options, **options}.items() if value is not None}
        changed.setdefault("seed", self._options.get("seed", 0))
        self._model.sampler_settings(**_sampling(changed))
        self._model.grammar_of(changed.get("grammar"), changed.get("json_schema"))
        stops_of(changed.get("stop"))
        if "max_tokens" in changed:
            require_whole("max_tokens", changed["max_tokens"], 1, 1 << 62)
        self._options = changed

    def set_system(self, system: str | None) -> None:
        """Change the system message; the next answer reads the conversation again.

        Raises:
            PromptError: the template refuses it; nothing is changed.
        """
        with self._lock:
            self._require_idle()
            first = [Message(role="system", content=system)] if system is not None else []
            self._told = self._scribe.read([*first, *self.messages[self._told.system is not None :]])
            self._forget_caches()

    def send(self, text: str, **options: Any) -> ChatReply:
        """Say something; the reply is the answer, to be iterated over.

        Raises:
            PromptError: the text cannot be used. SettingsError: an option cannot, or an answer is being written.
            PromptTooLong: the system message leaves no room.
        """
        with self._lock:
            self._require_idle()
            return self._ask(self._told, text, options)

    def edit(self, text: str, **options: Any) -> ChatReply:
        """Say the last thing differently.

        Raises:
            SettingsError: nothing was said, or an answer is being written. PromptError: the text cannot be used.
        """
        with self._lock:
            self._require_idle()
            return self._ask(self._told.undone(), text, options)

    def retry(self, **options: Any) -> ChatReply:
        """Answer the last question anew, with other noise.

        Raises:
            SettingsError: there is none, or an answer is being written.
        """
        with self._lock:
            self._require_idle()
            answer = self._told.answer
            new = Message(role="assistant", content="", attempt=answer.attempt + 1 if answer else 0)
            return self._reply(self._scribe.asked_again(self._told), new, (), options)

    def continue_answer(self, **options: Any) -> ChatReply:
        """Go on with an answer that was cancelled or got too long; the reply holds what is new.

        Raises:
            SettingsError: there is no unfinished answer, or one is being written.
        """
        with self._lock:
            self._require_idle()
            answer = self._told.answer
            if answer is None or answer.is_finished:
                raise SettingsError("there is no unfinished answer", hint="retry() writes another one")
            told = self._scribe.asked_again(self._told)
            written = self._scribe.written(self._told, told.tokens)
            return self._reply(replace(told, seen_from=self._told.seen_from), answer, written, options)

    def undo(self) -> tuple[Message, ...]:
        """Take the last question and its answer back; returns them.

        Raises:
            SettingsError: nothing was said, or an answer is being written.
        """
        with self._lock:
            self._require_idle()
            before, self._told = self._told, self._told.undone()
            return before.messages[len(self.messages) :]

    def clear(self) -> None:
        """Forget everything but the system message and the settings."""
        with self._lock:
            self._require_idle()
            self._told = self._scribe.read(self.messages[: self._told.system is not None])
            self._forget_caches()

    def close(self) -> None:
        """Cancel an answer that is being written, and forget the caches; the model stays open."""
        reply = self._writing() if self._writing is not None else None
        if reply is not None:
            reply.close()
        self._model.turns.release(self)

    def save(self, path: StrPath, *, caches: bool = True) -> None:
        """Write the conversation to a file, whole or not at all; see ``ChatSession.load``.

        Args:
            caches: with what the models have in their caches, so that they go on with the very same bits.

        Raises:
            OSError: the file cannot be written. SettingsError: an answer is being written.
        """
        from edge_spec.chat.saving import save

        with self._lock:
            self._require_idle()
            if not caches:
                save(path, self.to_json(), self._model.profile, None)
                return
            try:
                with self._model.turns.lent_caches(self) as held:
                    save(path, self.to_json(), self._model.profile, held)
            except BudgetExceeded:
                save(path, self.to_json(), self._model.profile, None)
                self._notice("saved without caches, which the memory has no room for; they will be read again")

    @classmethod
    def load(cls, model: TextModel, path: StrPath, *, on_notice: Callable[[str], object] | None = None) -> ChatSession:
        """The conversation in a file of ``save``.

        Saved with another model or other settings of the engine, or with damaged caches, its text is read again,
        with a notice.

        Raises:
            StateError: the file is damaged, or no conversation. OSError: it cannot be read.
        """
        from edge_spec.chat.saving import restore

        return restore(cls, model, path, on_notice or (lambda sentence: None))

    def to_json(self) -> dict[str, Any]:
        """All but the caches, as plain values."""
        with self._lock:
            return {**self._told.to_json(), "options": self._options, "template_options": self._scribe.options}

    def resume_at(self, values: Mapping[str, Any], caches: Caches | None) -> None:
        """Take tokens and places over from ``to_json`` of a session with the same messages and vocabulary.

        Raises:
            StateError: they do not fit together.
        """
        known = self._model.known_tokens
        for turn in values["turns"]:
            known(turn["rest"])
        with self._lock:
            self._told = self._told.located(values, known(values["tokens"]))
            self._was_read = caches is not None
        if caches is not None:
            self._model.turns.lay(self, caches)

    # What follows is between the session and its replies.

    def _require_idle(self) -> None:
        reply = self._writing() if self._writing is not None else None
        if reply is not None and not reply.is_taken_down:
            raise SettingsError(
                "an answer of this conversation is being written", hint="read it to the end or close() it first"
            )

    def _forget_caches(self) -> None:
        self._model.turns.release(self)
        self._was_read = False

    def _ask(self, told: Conversation, text: str, options: Mapping[str, Any]) -> ChatReply:
        question = Message(role="user", content=text)
        if not text.strip():
            raise PromptError("the message is empty", hint="say something")
        answer = Message(role="assistant", content="")
        return self._reply(self._scribe.ask(told, question), answer, (), options)

    def _reply(
        self, told: Conversation, answer: Message, written: tuple[int, ...], options: Mapping[str, Any]
    ) -> ChatReply:
        """The reply that writes, or goes on with, the answer to the last question of ``told``."""
        chosen = {**self._options, **options}
        window = told.window
        # Refused before anything is changed.
        window.fit(len(told.tokens) + len(written), self._model.n_ctx)

        def record(reply: ChatReply) -> None:
            reason = reply.finish_reason or "cancelled"
            done = {**reply.statistics.speculation(), **reply.statistics.timings()}
            ended = replace(answer, content=reply.content, finish_reason=reason, drawn=reply.drawn, statistics=done)
            self._told = told.answered(ended, (*reply.prompt, *reply.token_ids), window)

        reply = self._model.reply(
            ChatReply,
            told.tokens,
            self._model.sampler_settings(**_sampling(chosen), attempt=answer.attempt),
            **{name: chosen.get(name) for name in _NO_SAMPLING},
            written=written,
            drawn=answer.drawn,
            context=WindowContext(window, owned=self._take_models, on_forget=self._on_forget),
            holder=self,
            on_end=record,
            on_notice=lambda sentence: self.on_notice(sentence),
            opening=self._scribe.opening(told.tokens),
        )
        self._told = told
        self._writing = weakref.ref(reply)
        return reply

    def _take_models(self) -> bool:
        """Called by a reply that has its turn: whether the models have this conversation in their caches."""
        reply = self._writing() if self._writing is not None else None
        owned = (reply is not None and reply.owns_caches) or self._model.turns.bring_back(self)
        if self._was_read and not owned:
            self._notice("the conversation is read again; what follows may differ where two tokens are equally likely")
        self._was_read = True
        return owned

    def _on_forget(self, n_tokens: int) -> None:
        self._notice(f"the context is full: the model no longer sees {n_tokens} of the oldest tokens")

    def _notice(self, sentence: str) -> None:
        reply = self._writing() if self._writing is not None else None
        if reply is not None:
            reply.notice(sentence)
        else:
            self.on_notice(sentence)


def _sampling(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in _NO_SAMPLING}
