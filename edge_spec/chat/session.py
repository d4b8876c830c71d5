"""A conversation with a model."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any, Unpack

from edge_spec.chat.chat_model import ChatModel
from edge_spec.chat.conversation import Conversation, Message
from edge_spec.chat.tokenization import ConversationTokenizer, Told
from edge_spec.errors import (
    BudgetExceeded,
    Closed,
    NoChatTemplate,
    PromptError,
    Sentence,
    SettingsError,
    UnfinishedReply,
)
from edge_spec.generation.context import Context, Notice
from edge_spec.generation.options import ANSWER_OPTIONS, AnswerKeywords
from edge_spec.generation.reply import Reply
from edge_spec.generation.sequence import Sequence as TextSequence
from edge_spec.generation.suspended_caches import SuspendedCaches
from edge_spec.generation.thinking import think_of
from edge_spec.generation.tools.functions import callable_functions
from edge_spec.options import refuse_unknown
from edge_spec.sampling import Sampler
from edge_spec.speculation.loop import Slot

__all__ = ["ChatKeywords", "ChatSession"]

StrPath = str | os.PathLike[str]

_READ_AGAIN = (
    "what the model had computed of this conversation was not kept, so it is read again: from here on it may differ "
    "from the same conversation alone; more memory, fewer conversations at a time, and saving caches with it avoid that"
)


class ChatKeywords(AnswerKeywords, total=False):
    """The keyword arguments of ``TextModel.chat`` beside the system message; see ``ChatSession``."""

    messages: Iterable[Message | Mapping[str, Any]]
    on_notice: Callable[[str], object]
    on_progress: Callable[[str, int, int], object]
    template_options: Mapping[str, Any] | None


class ChatSession:
    """A conversation with a model. It writes one answer at a time, each a ``Reply``.

    The models do not read again what they have read: the next answer begins as soon as they have read the new text. Any
    number of sessions share one model; those that wait keep what was read, while memory has room. When a conversation
    outgrows the context, the model no longer sees its oldest turns, and a notice says so; ``messages`` keeps them.

    The text of an answer depends on the messages and what was drawn in them, the settings, the seed, and the
    model's numerics profile; never on drafts.

    Args:
        model: what answers.
        system: the system message.
        messages: a conversation to continue.
        on_notice: called with each notice, a sentence; a reply has them in ``notices``, too.
        on_progress: called with how much of the conversation has been read for an answer, see ``TextModel.generate``.
        template_options: further names for the model's chat template, such as ``tools`` or ``enable_thinking``.
        **options: defaults for every answer, see ``TextModel.generate``.

    Attributes:
        was_read: the models have read the conversation, so reading it again deserves a notice.
        departs: answers may differ from those of the undisturbed conversation; their identity is ``rounding``.
        moves: starts of the window after each shift that the cached cells went through, ascending; see ``Window``.

    Raises:
        PromptError: the model has no chat template, or the template refuses the messages.
        SettingsError: a setting is out of its range or unknown.
    """

    def __init__(
        self,
        model: ChatModel,
        *,
        system: str | None = None,
        messages: Iterable[Message | Mapping[str, Any]] = (),
        on_notice: Callable[[str], object] = lambda sentence: None,
        on_progress: Callable[[str, int, int], object] = lambda stage, done, total: None,
        template_options: Mapping[str, Any] | None = None,
        **options: Unpack[AnswerKeywords],
    ) -> None:
        if model.prompts.chat_template is None:
            raise NoChatTemplate
        self.on_notice = on_notice
        self.on_progress = on_progress
        self.was_read = self.departs = False
        self.moves: tuple[int, ...] = ()
        self._model = model
        self._tokenizer = ConversationTokenizer(model, template_options or {})
        self._lock = threading.RLock()
        self._reply: weakref.ref[Reply] | None = None
        self._sequence: weakref.ref[TextSequence] | None = None
        self._options: dict[str, Any] = {}
        self.set(**{"seed": model.sampler_settings().seed, **options})
        given = [message if isinstance(message, Message) else Message.from_json(message) for message in messages]
        first = [Message(role="system", content=system)] if system is not None else []
        self._said = self._tokenizer.read([*first, *given], self._told(self._options))

    def __repr__(self) -> str:
        return f"<ChatSession: {len(self.messages)} messages, {self.n_tokens} tokens>"

    @property
    def model(self) -> ChatModel:
        """The model that answers."""
        return self._model

    @property
    def messages(self) -> tuple[Message, ...]:
        """All messages, the system message included."""
        return self._conversation.messages

    @property
    def system(self) -> str | None:
        """The system message."""
        return self._conversation.system.content if self._conversation.system else None

    @property
    def options(self) -> dict[str, Any]:
        """Settings of the next answer; change them with ``set``."""
        return dict(self._options)

    @property
    def n_tokens(self) -> int:
        """Tokens of the whole conversation."""
        return len(self._conversation.tokens)

    @property
    def n_seen(self) -> int:
        """Tokens of the conversation that the model sees."""
        return max(self.n_tokens - self._conversation.window.n_forgotten, 0)

    @property
    def n_turns(self) -> int:
        """Questions asked so far."""
        return self._conversation.n_questions

    def set(self, **options: Any) -> None:
        """Change settings of later answers; None restores a default.

        Raises:
            SettingsError: a value is out of its range, or there is no such setting; nothing is changed.
        """
        changed = {name: value for name, value in {**self._options, **options}.items() if value is not None}
        changed.setdefault("seed", self._options.get("seed", 0))
        refuse_unknown(changed, ANSWER_OPTIONS)
        self._model.check_options(**changed)
        self._options = changed

    def set_system(self, system: str | None) -> None:
        """Change the system message; the next answer reads the conversation again.

        Raises:
            PromptError: the template refuses it; nothing is changed.
        """
        first = [Message(role="system", content=system)] if system is not None else []
        with self._lock:
            self._require_idle()
            self._start_again([*first, *self.messages[self._conversation.system is not None :]])

    def send(self, text: str | Sequence[Mapping[str, Any]], **options: Unpack[AnswerKeywords]) -> Reply:
        """Send a message and return the answer, a reply to iterate over.

        Args:
            text: what to say; or, if the last answer calls tools, the result of each call: ``call.result(...)`` for
                each of the reply's ``tool_calls``.
            **options: settings of this answer alone.

        Raises:
            PromptError: the text cannot be used. SettingsError: an option cannot.
            PromptTooLong: the system message leaves no room. UnfinishedReply: an answer is being written.
        """
        with self._lock:
            self._require_idle()
            return self._ask(self._conversation, text, options)

    def edit(self, text: str | Sequence[Mapping[str, Any]], **options: Unpack[AnswerKeywords]) -> Reply:
        """Replace the last message; see ``send``.

        Raises:
            SettingsError: nothing was said. UnfinishedReply: an answer is being written.
            PromptError: the text cannot be used.
        """
        with self._lock:
            self._require_idle()
            return self._ask(self._conversation.undone(), text, options)

    def retry(self, **options: Unpack[AnswerKeywords]) -> Reply:
        """Answer the last question again with other noise.

        Raises:
            SettingsError: there is no question. UnfinishedReply: an answer is being written.
        """
        with self._lock:
            self._require_idle()
            answer = self._conversation.answer
            new = Message(role="assistant", content="", attempt=answer.attempt + 1 if answer else 0)
            asked = self._tokenizer.asked_again(self._conversation, self._told({**self._options, **options}))
            return self._answer(asked, new, (), options)

    def continue_answer(self, **options: Unpack[AnswerKeywords]) -> Reply:
        """Continue an answer that was cancelled or reached its token limit; the reply's text is the new part.

        Raises:
            SettingsError: there is no unfinished answer. UnfinishedReply: one is being written.
        """
        with self._lock:
            self._require_idle()
            answer = self._conversation.answer
            if answer is None or answer.is_finished:
                raise SettingsError("there is no unfinished answer", hint=Sentence("{retry()} writes another one"))
            asked = self._tokenizer.asked_again(self._conversation, self._told({**self._options, **options}))
            written = self._tokenizer.written(self._conversation, asked.tokens)
            return self._answer(replace(asked, seen_from=self._conversation.seen_from), answer, written, options)

    def undo(self) -> tuple[Message, ...]:
        """Remove the last question and its answer, and return them.

        Raises:
            SettingsError: nothing was said. UnfinishedReply: an answer is being written.
        """
        with self._lock:
            self._require_idle()
            before, self._conversation = self._conversation, self._conversation.undone()
            return before.messages[len(self.messages) :]

    def clear(self) -> None:
        """Remove all messages but the system message; keep the settings.

        Raises:
            UnfinishedReply: an answer is being written.
        """
        with self._lock:
            self._require_idle()
            self._start_again(self.messages[: self._conversation.system is not None])

    def close(self) -> None:
        """Cancel an answer that is being written, and drop the caches; the model stays open."""
        reply = self._last_reply()
        if reply is not None:
            reply.close()
        self._model.prefix_cache.release(self)

    def save(self, path: StrPath, *, caches: bool = True) -> None:
        """Write the conversation to a file, whole or not at all; see ``ChatSession.load``.

        Args:
            caches: with what the models have in their caches, so that it resumes with the very same bits.

        Raises:
            OSError: the file cannot be written. UnfinishedReply: an answer is being written.
            StateError: the file is there already, and not a conversation.
        """
        from edge_spec.chat.saving import save

        with self._lock:
            self._require_idle()
            kept: SuspendedCaches | None = None
            with ExitStack() as copies:
                try:
                    if caches:
                        with self._model.worker.pause():
                            kept = copies.enter_context(self._model.prefix_cache.copied(self))
                except BudgetExceeded:
                    self.on_notice(
                        "saved without caches, for which the memory has no room; the text will be read again"
                    )
                save(path, self.to_json(), self._model.profile, kept)

    @classmethod
    def load(
        cls, model: ChatModel, path: StrPath, *, on_notice: Callable[[str], object] = lambda sentence: None
    ) -> ChatSession:
        """Return the conversation in a file that ``save`` has written.

        If it was saved with another model or other settings of the engine, or its caches are damaged, its text is read
        again, with a notice.

        Raises:
            StateError: the file is damaged, or not a conversation. OSError: it cannot be read.
        """
        from edge_spec.chat.saving import restore

        session: ChatSession = restore(cls, model, path, on_notice)
        return session

    def to_json(self) -> dict[str, Any]:
        """Return the conversation without caches, as plain values."""
        with self._lock:
            conversation, template_options = self._conversation.to_json(), self._tokenizer.template_options
            caches = {"was_read": self.was_read, "departs": self.departs, "moves": list(self.moves)}
            return {**conversation, **caches, "options": self._options, "template_options": template_options}

    def resume_at(self, values: Mapping[str, Any], caches: SuspendedCaches | None, *, departs: bool) -> None:
        """Take over tokens and positions from ``to_json`` of a session with the same messages and vocabulary.

        Args:
            departs: the caches could not be used, of which a notice has been given.

        Raises:
            StateError: they do not fit together.
        """
        known = self._model.prompts.known
        for turn in values["turns"]:
            known(turn["rest"])
        with self._lock:
            self._conversation = self._conversation.located(values, known(values["tokens"]))
            # Absent in files of earlier versions.
            window = self._conversation.window
            self.moves = tuple(map(int, values.get("moves", window.moved)))
            was_read = values.get("was_read", bool(values["turns"])) is True
            self.was_read = not departs and (caches is not None or was_read)
            self.departs = departs or values.get("departs") is True
        if caches is not None:
            with self._model.worker.pause():
                self._model.prefix_cache.keep(self, caches)

    @property
    def _conversation(self) -> Conversation:
        """Return the conversation, including what was written of an answer that the caller dropped."""
        sequence = self._sequence() if self._sequence is not None else None
        if sequence is not None and not sequence.is_recorded and self._last_reply() is None:
            # It ends before the next step.
            with suppress(Closed, UnfinishedReply), self._model.worker.pause():
                pass
        return self._said

    @_conversation.setter
    def _conversation(self, conversation: Conversation) -> None:
        self._said = conversation

    def _last_reply(self) -> Reply | None:
        return self._reply() if self._reply is not None else None

    def _require_idle(self) -> None:
        reply = self._last_reply()
        if reply is not None and not reply.has_ended:
            raise UnfinishedReply("an answer of this conversation")

    def _start_again(self, messages: Iterable[Message]) -> None:
        self._conversation = self._tokenizer.read([*messages], self._told(self._options))
        self._model.prefix_cache.release(self)
        self.was_read = self.departs = False
        self.moves = ()

    def _told(self, options: Mapping[str, Any]) -> Told:
        """Return what the model is told besides the messages."""
        functions, _ = callable_functions(options.get("tools"), options.get("tool_choice", "auto"))
        return Told(functions, think_of(options.get("think")))

    def _ask(self, before: Conversation, text: str | Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> Reply:
        asked = [Message(role="user", content=text)] if isinstance(text, str) else _results(before.answer, text)
        if isinstance(text, str) and not text.strip():
            raise PromptError("the message is empty", hint="say something")
        conversation = self._tokenizer.ask(before, asked, self._told({**self._options, **options}))
        return self._answer(conversation, Message(role="assistant", content=""), (), options)

    def _answer(
        self, asked: Conversation, message: Message, written: tuple[int, ...], options: Mapping[str, Any]
    ) -> Reply:
        """Return the reply that writes, or continues, the answer to the last question of a conversation."""
        chosen, answer = {**self._options, **options}, _Answer(self, asked, message)
        refuse_unknown(chosen, ANSWER_OPTIONS)
        reply = self._model.reply(
            asked.tokens,
            **chosen,
            attempt=message.attempt,
            written=written,
            drawn=message.drawn,
            context=answer,
            recorder=answer,
            on_progress=self.on_progress,
        )
        self._conversation = asked
        self._reply, self._sequence = weakref.ref(reply), weakref.ref(reply.sequence)
        return reply


def _results(answer: Message | None, given: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Return one result for each call of an answer, in the order of the calls.

    Raises:
        PromptError: a call has no result or several, or a result has no call.
    """
    if not isinstance(given, list | tuple):
        raise PromptError(
            f"a message is a text, or results of calls, not {type(given).__name__}", hint="give a text or a list"
        )
    calls = {call.id: call for call in answer.tool_calls} if answer is not None else {}
    results = {each.tool_call_id: each for each in map(Message.from_json, given) if each.role == "tool"}
    hint = "send one result for each call of the last answer, and nothing else"
    if not calls:
        raise PromptError("the last answer calls no tools", hint="say something")
    missing = next((call for id, call in calls.items() if id not in results), None)
    if missing is not None:
        raise PromptError(f"the call of {missing.name} has no result", hint=hint)
    if len(given) > len(calls):
        raise PromptError("there are more results than calls", hint=hint)
    return [results[id] for id in calls]


class _Answer(Context):
    """Moves the window while an answer is being written, and then records the answer.

    However the reply ends, what was written becomes the answer: it is also the reply's ``Recorder``.

    Args:
        session: whose caches are resumed for it.
        conversation: as it is with the question.
        message: what the reply completes.
    """

    def __init__(self, session: ChatSession, conversation: Conversation, message: Message) -> None:
        self.session: ChatSession = session
        self._conversation = conversation
        self._message = message
        self._window = conversation.window
        # Once the answer is being written. Before, the models may still have that of another reply.
        self._sampler: Sampler | None = None
        self.shares = not self._window.n_forgotten
        # A later answer may change the session's value, never this one.
        self._departs = session.departs

    @property
    def departs(self) -> bool:
        return self._departs

    @departs.setter
    def departs(self, departs: bool) -> None:
        self._departs = self.session.departs = departs

    def require_room(self, n_tokens: int, n_ctx: int) -> None:
        self._window.fit(n_tokens, n_ctx)

    def may_share(self, n_tokens: int, n_ctx: int) -> bool:
        # Move only cells that this conversation has read, never those of another text.
        return self.shares and self._window.fit(n_tokens, n_ctx) is None

    def begin(self, slot: Slot, text: Sequence[int], sampler: Sampler, *, resumed: bool, notice: Notice) -> None:
        session, window = self.session, self._window
        start = window.fit(len(text), slot.model.n_ctx)
        if resumed and [place for place in session.moves if place > window.start] not in ([], [start]):
            # The cells were shifted for an answer that has been taken back: read again what follows the head.
            slot.replace(window.head, ())
            resumed = False
        elif not resumed:
            slot.forget()
        if not resumed:
            # Cells that were moved, or would be now, have other bits than reading the text again.
            is_same = self.shares and start is None and slot.model.capabilities.reuse_step == 1
            if session.was_read and not is_same:
                notice(_READ_AGAIN, departs=True)
            session.moves = window.moved
        session.was_read = True
        if start is not None:
            self._move(slot, start, notice)
        slot.begin(window.seen(text), sampler, reuse=True)
        # Last: after a cancel before this line, all of it is done once more.
        sampler.forget(window.n_forgotten)
        self._sampler = sampler

    def make_room(self, slot: Slot, notice: Notice) -> bool:
        n_tokens = len(slot.text) + self._window.n_forgotten
        self._move(slot, self._window.next_start(n_tokens, slot.model.n_ctx), notice)
        return True

    def can_shrink(self, slot: Slot, n_ctx: int) -> bool:
        return self._window.head + n_ctx // 8 < n_ctx

    def notice(self, sentence: str) -> None:
        self.session.on_notice(sentence)

    def ended(self, reply: TextSequence) -> None:
        message = replace(
            self._message,
            content=reply.content,
            tool_calls=reply.parsed[1],
            finish_reason=reply.finish_reason or "cancelled",
            drawn=reply.drawn,
            statistics={**reply.statistics.speculation(), **reply.statistics.timings()},
        )
        tokens = (*reply.prompt, *reply.token_ids)
        self.session._conversation = self._conversation.answered(message, tokens, self._window)

    def _move(self, slot: Slot, start: int, notice: Notice) -> None:
        head, forgotten = self._window.head, start - self._window.start
        # A retry finds the caches already moved.
        if start not in self.session.moves:
            if head + forgotten < len(slot.text):
                slot.cut(head, head + forgotten)
            self.session.moves = (*self.session.moves, start)
        self._window.start, self.shares = start, False
        if self._sampler is not None:
            self._sampler.forget(forgotten)
        notice(f"the context is full: the model no longer sees the oldest {forgotten} tokens")
