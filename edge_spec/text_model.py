"""What ``edge_spec.load`` returns: a model that writes text."""

from __future__ import annotations

import math
import secrets
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from operator import index
from types import TracebackType
from typing import Any, Protocol, Self

from edge_spec.backends.base import NumericsProfile
from edge_spec.chat_template import render_chat
from edge_spec.errors import Closed, PromptError, SettingsError
from edge_spec.generation import Generation, Vocabulary
from edge_spec.memory import Ledger
from edge_spec.policy import Policy
from edge_spec.sampling import SamplerSettings
from edge_spec.speculator import Speculator

__all__ = ["Messages", "TextModel", "Tokenizer"]

Messages = Sequence[Mapping[str, str]]
"""A conversation: ``{"role": "system" | "user" | "assistant", "content": ...}`` each."""


class Tokenizer(Vocabulary, Protocol):
    """Text to tokens and back."""

    adds_bos: bool

    def tokenize(self, text: str, *, add_special: bool) -> list[int]:
        """Token ids of a text."""

    def text(self, tokens: Sequence[int]) -> str:
        """The text of token ids, without control tokens."""

    def name(self, token: int) -> str:
        """The text of a token, control tokens included."""

    @property
    def bos(self) -> int:
        """The token that begins a text, -1 if there is none."""

    @property
    def eos(self) -> int:
        """The token that ends a text, -1 if there is none."""


class TextModel:
    """A loaded model, its drafter and its policy. A context manager; usable from any thread.

    One reply is written at a time: a second thread waits for its turn, the same thread gets an error, since
    it would wait for itself.

    Attributes:
        mode: the name of the way it speculates.
        lossless: whether the text has the model's own law.
        notes: sentences that the user should know, such as why it does not speculate.
        ledger: who holds which bytes, and what is left of the memory budget.
    """

    def __init__(
        self,
        speculator: Speculator,
        policy: Callable[[], Policy],
        tokenizer: Tokenizer,
        *,
        mode: str,
        lossless: bool = True,
        chat_template: str | None = None,
        notes: Sequence[str] = (),
        ledger: Ledger | None = None,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self.mode = mode
        self.lossless = lossless
        self.notes = tuple(notes)
        self.ledger = ledger if ledger is not None else Ledger()
        self._speculator = speculator
        self._new_policy = policy
        self._tokenizer = tokenizer
        self._chat_template = chat_template
        self._on_close = on_close
        self._turn = threading.Lock()
        # Weak: a reply that nobody reads any more must go, and give its turn back.
        self._writer: tuple[int, weakref.ref[Generation]] | None = None
        self._closed = False

    @property
    def n_ctx(self) -> int:
        """The most tokens of prompt and reply together."""
        return self._speculator.model.n_ctx

    @property
    def n_vocab(self) -> int:
        """Number of token ids."""
        return self._speculator.model.n_vocab

    @property
    def profile(self) -> NumericsProfile:
        """Everything that rounds; equal profiles, prompts, settings and seeds give equal text."""
        return self._speculator.model.profile

    @property
    def identity(self) -> str:
        """``bitwise``: drafts change no bit. ``rounding``: this device computes rows of some widths differently."""
        return self._speculator.model.traits.identity

    @property
    def has_chat_template(self) -> bool:
        """Whether the model knows how conversations are written."""
        return self._chat_template is not None

    def tokenize(self, text: str, *, add_special: bool = True) -> list[int]:
        """Token ids of a text."""
        self._check_open()
        if not isinstance(text, str):
            raise PromptError(f"a text is wanted, not {type(text).__name__}")
        return self._tokenizer.tokenize(text, add_special=add_special)

    def detokenize(self, tokens: Sequence[int]) -> str:
        """The text of token ids, without control tokens."""
        self._check_open()
        return self._tokenizer.text(self._known(tokens))

    def prompt_of(self, prompt: str | Messages, *, raw: bool = False) -> list[int]:
        """Token ids of a prompt as ``generate`` would use it."""
        self._check_open()
        if raw or self._chat_template is None:
            if not isinstance(prompt, str):
                raise PromptError("messages need a chat template", hint="this model has none: give a text")
            return self._tokenizer.tokenize(prompt, add_special=True)
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        if not isinstance(messages, list | tuple) or not all(isinstance(message, Mapping) for message in messages):
            raise PromptError(
                "a prompt is a text or a list of messages", hint='one is {"role": ..., "content": ...}'
            )
        bos = self._tokenizer.name(self._tokenizer.bos)
        text = render_chat(self._chat_template, messages, bos=bos, eos=self._tokenizer.name(self._tokenizer.eos))
        # Many templates begin with the begin-of-text token themselves; two of them confuse a model.
        return self._tokenizer.tokenize(text, add_special=not (bos and text.startswith(bos)))

    def generate(
        self,
        prompt: str | Messages | None = None,
        *,
        tokens: Sequence[int] | None = None,
        raw: bool = False,
        max_tokens: int | None = None,
        stop: str | Sequence[str] | None = (),
        ignore_eos: bool = False,
        seed: int | None = None,
        **sampling: Any,
    ) -> Generation:
        """A reply, to be iterated over piece by piece; it is written as it is asked for.

        Args:
            prompt: a text, or messages of a conversation.
            tokens: token ids instead of a prompt.
            raw: continue the text as it is, without the chat template.
            max_tokens: the most tokens to write; as many as fit the context if None.
            stop: texts that end the reply.
            ignore_eos: never let the model end the reply itself.
            seed: fixes the draw; a random one, found in ``.settings.seed``, if None.
            **sampling: fields of ``SamplerSettings``.

        Raises:
            SettingsError, PromptError, PromptTooLong, Closed.
        """
        self._check_open()
        if (prompt is None) == (tokens is None):
            raise SettingsError("give either a prompt or tokens")
        if tokens is None:
            assert prompt is not None
            tokens = self.prompt_of(prompt, raw=raw)
        tokens = self._known(tokens)
        if ignore_eos:
            ends = (token for token in range(self.n_vocab) if self._tokenizer.ends(token))
            sampling["logit_bias"] = {**sampling.get("logit_bias", {}), **dict.fromkeys(ends, -math.inf)}
        settings = SamplerSettings.of({"seed": secrets.randbits(32) if seed is None else seed, **sampling})
        outside = next((token for token in settings.logit_bias if token >= self.n_vocab), None)
        if outside is not None:
            raise SettingsError(f"logit_bias names token {outside}; this model has {self.n_vocab} tokens")
        return _TurnTaking(
            self,
            self._speculator,
            self._new_policy(),
            self._tokenizer,
            tokens,
            settings,
            max_tokens=max_tokens,
            stop=(stop,) if isinstance(stop, str) else tuple(stop or ()),
        )

    def close(self) -> None:
        """Cancel what is being written, wait for it to stop, and free everything. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        writer = self._writer
        reply = writer[1]() if writer is not None else None
        if reply is not None:
            reply.close()
        del reply
        with self._turn:
            self._speculator.close()
            self._on_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _known(self, tokens: Sequence[int]) -> list[int]:
        """Token ids as plain integers; anything else is refused before a library sees it."""
        try:
            known = [index(token) for token in tokens]
        except TypeError:
            raise PromptError("tokens must be whole numbers", hint="tokenize() makes them of a text") from None
        bad = next((token for token in known if not 0 <= token < self.n_vocab), None)
        if bad is not None:
            raise PromptError(f"token {bad} is not in the vocabulary of {self.n_vocab}")
        return known

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the model")

    def _enter_turn(self, generation: Generation) -> None:
        writer = self._writer
        if writer is not None and writer[0] == threading.get_ident():
            raise SettingsError(
                "another reply of this model is not finished yet", hint="read it to the end or close() it first"
            )
        self._turn.acquire()
        self._writer = (threading.get_ident(), weakref.ref(generation))
        # Only now: who closes looks for a writer after saying so.
        if self._closed:
            self._leave_turn()
            raise Closed("the model")

    def _leave_turn(self) -> None:
        self._writer = None
        self._turn.release()


class _TurnTaking(Generation):
    """A generation that holds its model's turn from its first piece to its end."""

    def __init__(self, owner: TextModel, *args: Any, **kwargs: Any) -> None:
        self._owner = owner
        self._holds_turn = False
        super().__init__(*args, **kwargs)

    def _begin(self) -> None:
        self._owner._enter_turn(self)
        self._holds_turn = True
        super()._begin()

    def _end(self, reason: str) -> None:
        super()._end(reason)
        self._leave()

    def _leave(self) -> None:
        if self._holds_turn:
            self._holds_turn = False
            self._owner._leave_turn()

    def __del__(self) -> None:
        # A reply that nobody reads to its end must not keep the model from the next one.
        self._leave()
