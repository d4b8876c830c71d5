"""A conversation with a model."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from edge_spec.chat.history import continued, head_of
from edge_spec.chat.messages import Message
from edge_spec.chat.reply import ChatReply
from edge_spec.chat.window import Window, WindowContext
from edge_spec.errors import PromptError, SettingsError, StateError
from edge_spec.sampling import SamplerSettings
from edge_spec.shelf import Caches
from edge_spec.text_model import TextModel

__all__ = ["ChatSession", "Turn"]

StrPath = str | os.PathLike[str]


@dataclass(frozen=True, kw_only=True)
class Turn:
    """Where a turn lies.

    Attributes:
        n_messages: messages before the user's.
        start: tokens before it.
        n_prompt: tokens before its answer.
        seen_from: where the window started when it was asked.
    """

    n_messages: int
    start: int
    n_prompt: int
    seen_from: int = 0


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
        self.caches: Caches | None = None
        self.on_notice = on_notice
        self._model = model
        self._template_options = dict(template_options or {})
        self._lock = threading.RLock()
        self._writing: weakref.ref[ChatReply] | None = None
        self._tokens: list[int] = []
        self._turns: list[Turn] = []
        self._window = Window()
        self._has_cached = False
        if not model.has_chat_template:
            raise PromptError("this model has no chat template", hint="use a chat model, or 'run --raw'")
        self._options: dict[str, Any] = {}
        self.set(**{"seed": model.sampler_settings().seed, **options})
        self._messages = _as_messages(messages)
        if system is not None:
            self._messages.insert(0, Message(role="system", content=system))
        self._read_again()

    @property
    def model(self) -> TextModel:
        """What answers."""
        return self._model

    @property
    def messages(self) -> tuple[Message, ...]:
        """All that was said, the system message included."""
        return tuple(self._messages)

    @property
    def system(self) -> str | None:
        """The system message."""
        return self._messages[0].content if self._has_system else None

    @property
    def options(self) -> dict[str, Any]:
        """Settings of the next answer; change them with ``set``."""
        return dict(self._options)

    @property
    def n_tokens(self) -> int:
        """Tokens of the whole conversation."""
        return len(self._tokens)

    @property
    def n_seen(self) -> int:
        """Tokens of it that the model sees: what the context holds."""
        return max(len(self._tokens) - self._window.n_forgotten, 0)

    @property
    def n_turns(self) -> int:
        """Questions asked so far."""
        return len(self._turns)

    def set(self, **options: Any) -> None:
        """Change settings of the answers to come; None brings a default back.

        Raises:
            SettingsError: a value is out of its range, or there is no such setting; nothing is changed.
        """
        changed = {name: value for name, value in {**self._options, **options}.items() if value is not None}
        changed.setdefault("seed", self._options.get("seed", 0))
        sampling = {name: value for name, value in changed.items() if name not in ("max_tokens", "stop")}
        self._model.sampler_settings(**sampling)
        self._options = changed

    def set_system(self, system: str | None) -> None:
        """Change the system message; the next answer reads the conversation again.

        Raises:
            PromptError: the template refuses it; nothing is changed.
        """
        with self._lock:
            self._require_idle()
            rest = self._messages[self._has_system :]
            self._change([Message(role="system", content=system), *rest] if system is not None else rest)

    def send(self, text: str, **options: Any) -> ChatReply:
        """Say something; the reply is the answer, to be iterated over.

        Raises:
            PromptError: the text cannot be used. SettingsError: an option cannot, or an answer is being written.
            PromptTooLong: the system message leaves no room.
        """
        with self._lock:
            self._require_idle()
            question = Message(role="user", content=text)
            if not text.strip():
                raise PromptError("the message is empty", hint="say something")
            settings = self._settings(options)
            tokens, turn = self._ask(self._messages, self._tokens, question)
            turns = [*self._turns, turn]
            window = _window(self._window.head if self._turns else self._head(), turns)
            reply = self._reply(tokens, (), settings, window, options)
            self._messages.append(question)
            self._tokens, self._turns, self._window = tokens, turns, window
            return self._begin(reply, Message(role="assistant", content=""))

    def retry(self, **options: Any) -> ChatReply:
        """Answer the last question anew, with other noise.

        Raises:
            SettingsError: there is none, or an answer is being written.
        """
        with self._lock:
            self._require_idle()
            turn = self._last_turn()
            answer = self._messages[-1] if self._messages[-1].role == "assistant" else None
            attempt = answer.attempt + 1 if answer else 0
            prompt, window = self._tokens[: turn.n_prompt], _window(self._window.head, self._turns)
            reply = self._reply(prompt, (), self._settings(options, attempt), window, options)
            if answer:
                self._messages.pop()
            self._tokens, self._window = prompt, window
            return self._begin(reply, Message(role="assistant", content="", attempt=attempt))

    def continue_answer(self, **options: Any) -> ChatReply:
        """Go on with an answer that was cancelled or got too long; the reply holds what is new.

        Raises:
            SettingsError: there is no unfinished answer, or one is being written.
        """
        with self._lock:
            self._require_idle()
            answer = self._messages[-1] if self._messages else None
            if answer is None or answer.role != "assistant" or answer.is_finished:
                raise SettingsError("there is no unfinished answer", hint="retry() writes another one")
            turn = self._last_turn()
            prompt, written = self._tokens[: turn.n_prompt], self._tokens[turn.n_prompt :]
            settings = self._settings(options, answer.attempt)
            reply = self._reply(prompt, written, settings, self._window, options)
            self._messages.pop()
            return self._begin(reply, answer)

    def edit(self, text: str, **options: Any) -> ChatReply:
        """Say the last thing differently.

        Raises:
            SettingsError: nothing was said, or an answer is being written. PromptError: the text cannot be used.
        """
        with self._lock:
            self._require_idle()
            self._last_turn()
            before = self._messages, self._tokens, self._turns, self._window
            self._messages, self._turns = list(self._messages), list(self._turns)
            try:
                self.undo()
                return self.send(text, **options)
            except BaseException:
                self._messages, self._tokens, self._turns, self._window = before
                raise

    def undo(self) -> tuple[Message, ...]:
        """Take the last question and its answer back; returns them.

        Raises:
            SettingsError: nothing was said, or an answer is being written.
        """
        with self._lock:
            self._require_idle()
            turn = self._last_turn()
            taken = tuple(self._messages[turn.n_messages :])
            del self._messages[turn.n_messages :]
            self._window = _window(self._window.head, self._turns)
            self._turns.pop()
            self._window.boundaries.pop()
            self._tokens = self._tokens[: turn.start]
            return taken

    def clear(self) -> None:
        """Forget everything but the system message and the settings."""
        with self._lock:
            self._require_idle()
            self._change(self._messages[: self._has_system])

    def close(self) -> None:
        """Cancel an answer that is being written, and forget the caches; the model stays open."""
        reply = self._writing() if self._writing is not None else None
        if reply is not None:
            reply.close()
        self.caches = None
        self._model.release(self)

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
            held = (self.caches or self._model.caches_of(self)) if caches else None
            save(path, self.to_json(), self._model.profile, held)

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
            return {
                "messages": [message.to_json() for message in self._messages],
                "options": self._options,
                "template_options": self._template_options,
                "tokens": self._tokens,
                "turns": [[turn.n_messages, turn.start, turn.n_prompt, turn.seen_from] for turn in self._turns],
                "window": [self._window.head, self._window.start],
            }

    def resume_at(self, values: Mapping[str, Any], caches: Caches | None) -> None:
        """Take tokens, turns and window over from ``to_json`` of a session with the same messages and vocabulary.

        Raises:
            StateError: they do not fit together.
        """
        tokens = self._model.known_tokens(values["tokens"])
        turns = [
            Turn(n_messages=n, start=start, n_prompt=end, seen_from=seen_from)
            for n, start, end, seen_from in values["turns"]
        ]
        head, start = values["window"]
        places = [place for turn in turns for place in (turn.start, turn.n_prompt)]
        if places != sorted(places) or max([head, start, *places], default=0) > max(len(tokens), 4):
            raise StateError("turns of the conversation lie outside of its text")
        with self._lock:
            self._tokens, self._turns = tokens, turns
            self._window = Window(head, start, [turn.start for turn in turns])
            self.caches = caches
            self._has_cached = True

    # What follows is between the session and its replies.

    @property
    def _has_system(self) -> bool:
        return bool(self._messages) and self._messages[0].role == "system"

    def _last_turn(self) -> Turn:
        if not self._turns:
            raise SettingsError("nothing has been said yet", hint="send() something first")
        return self._turns[-1]

    def _require_idle(self) -> None:
        reply = self._writing() if self._writing is not None else None
        if reply is not None and not reply.is_taken_down:
            raise SettingsError(
                "an answer of this conversation is being written", hint="read it to the end or close() it first"
            )

    def _change(self, messages: list[Message]) -> None:
        before = self._messages
        self._messages = messages
        try:
            self._read_again()
        except BaseException:
            self._messages = before
            raise

    def _read_again(self) -> None:
        """Make tokens of all messages, turn by turn, as if they had been said one after the other."""
        tokens: list[int] = []
        turns: list[Turn] = []
        self._window = Window()
        for n, message in enumerate(self._messages):
            if message.role == "user":
                tokens, turn = self._ask(self._messages[:n], tokens, message)
                turns.append(turn)
        if turns and self._messages[-1].role == "assistant":
            # Not as the template ends it: the model may have more to say.
            tokens = [*tokens, *self._model.tokenize(self._messages[-1].content, add_special=False)]
        self._tokens, self._turns = tokens, turns
        self._window = Window(self._head() if turns else 0, 0, [turn.start for turn in turns])
        self.caches = None
        self._has_cached = False

    def _ask(self, messages: Sequence[Message], before: Sequence[int], question: Message) -> tuple[list[int], Turn]:
        """Tokens up to where the answer to a question begins."""
        text = self._render([*messages, question], answer=True)
        tokens, kept = continued(self._model, before, text)
        # An answer that was cut short got its end from the template: that belongs to the answer's turn.
        start = kept + (0 < kept < len(tokens) and kept == len(before) and self._model.ends(tokens[kept]))
        seen_from = self._window.start if self._window.n_forgotten else 0
        return tokens, Turn(n_messages=len(messages), start=start, n_prompt=len(tokens), seen_from=seen_from)

    def _head(self) -> int:
        """Tokens of the system message."""
        if not self._has_system:
            return 0
        system = self._messages[0]
        first, second = (
            self._model.prompt_tokens(self._render([system, Message(role="user", content=text)], answer=False))
            for text in ("a", "b")
        )
        return head_of(self._model, first, second)

    def _render(self, messages: Sequence[Message], *, answer: bool) -> str:
        return self._model.render(
            [message.for_template() for message in messages], answer=answer, options=self._template_options
        )

    def _settings(self, options: Mapping[str, Any], attempt: int = 0) -> SamplerSettings:
        chosen = {**self._options, **options, "attempt": attempt}
        return self._model.sampler_settings(**{k: v for k, v in chosen.items() if k not in ("max_tokens", "stop")})

    def _reply(
        self,
        prompt: Sequence[int],
        written: Sequence[int],
        settings: SamplerSettings,
        window: Window,
        options: Mapping[str, Any],
    ) -> ChatReply:
        chosen = {**self._options, **options}
        context = WindowContext(window, owned=self._take_models, on_forget=self._on_forget)
        window.fit(len(prompt) + len(written), self._model.n_ctx)
        return self._model.reply(
            ChatReply,
            prompt,
            settings,
            stop=chosen.get("stop"),
            max_tokens=chosen.get("max_tokens"),
            written=written,
            context=context,
            holder=self,
            on_end=self._record,
            opening=self._opening(prompt),
        )

    def _opening(self, prompt: Sequence[int]) -> str:
        """What of the answer stands in the prompt: some templates open the thought."""
        end = b"".join(map(self._model.spelling, prompt[-8:])).decode("utf-8", "replace")
        _, opened, after = end.rpartition("<think>")
        return opened + after if opened and not after.strip() else ""

    def _begin(self, reply: ChatReply, answer: Message) -> ChatReply:
        self._answer = answer
        self._writing = weakref.ref(reply)
        return reply

    def _record(self, reply: ChatReply) -> None:
        """An answer has ended, one way or the other."""
        ended = reply.finish_reason or "cancelled"
        self._messages.append(replace(self._answer, content=reply.content, finish_reason=ended))
        self._tokens = [*reply.prompt, *reply.token_ids]

    def _take_models(self) -> bool:
        """Called by a reply that has its turn: whether the models have this conversation in their caches."""
        reply = self._writing() if self._writing is not None else None
        if reply is None:
            return False
        caches, self.caches = self.caches, None
        owned = reply.owns_caches or (caches is not None and self._model.bring_back(caches))
        if self._has_cached and not owned:
            self._notice("the conversation is read again; what follows may differ where two tokens are equally likely")
        self._has_cached = True
        return owned

    def _on_forget(self, n_tokens: int) -> None:
        self._notice(f"the context is full: the model no longer sees {n_tokens} of the oldest tokens")

    def _notice(self, sentence: str) -> None:
        reply = self._writing() if self._writing is not None else None
        if reply is not None:
            reply.notices.append(sentence)
        self.on_notice(sentence)


def _window(head: int, turns: Sequence[Turn]) -> Window:
    """The window as it stood when the last turn's question was asked."""
    return Window(head, turns[-1].seen_from, [turn.start for turn in turns])


def _as_messages(messages: Iterable[Message | Mapping[str, Any]]) -> list[Message]:
    return [message if isinstance(message, Message) else Message.from_json(message) for message in messages]
