"""What ``edge_spec.load`` returns: a model that writes text."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from operator import index
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from edge_spec.controller.idle import IdleWatch
from edge_spec.errors import Closed, PromptError, SettingsError
from edge_spec.generation.chat_template import render_chat
from edge_spec.generation.lock import Turns, TurnTaking
from edge_spec.generation.reply import Reply
from edge_spec.generation.session_cache import Shelf
from edge_spec.generation.text_stream import stops_of
from edge_spec.memory import Ledger
from edge_spec.sampling import SamplerSettings
from edge_spec.sampling.dry import Breakers, find_breakers
from edge_spec.sampling.grammar import Grammar
from edge_spec.sampling.json_schema import schema_to_gbnf
from edge_spec.speculation.language_model import NumericsProfile
from edge_spec.speculation.loop import Speculator
from edge_spec.speculation.policy import Policy
from edge_spec.tokens.tokenizer import Tokenizer

if TYPE_CHECKING:
    from edge_spec.chat import ChatSession
    from edge_spec.controller.degradation import Degradation

__all__ = ["Messages", "TextModel"]

Messages = Sequence[Mapping[str, str]]
"""A conversation: ``{"role": "system" | "user" | "assistant", "content": ...}`` each."""


AnyReply = TypeVar("AnyReply", bound=TurnTaking)


class TextModel:
    """A loaded model, its drafter and its policy. A context manager; usable from any thread.

    One reply is written at a time: a second thread waits for its turn, the same thread gets an error, since
    it would wait for itself.

    Attributes:
        mode: the name of the way it speculates.
        lossless: whether the text has the model's own law.
        notes: sentences that the user should know, such as why it does not speculate.
        turns: who uses the models.
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
        shelf: Shelf | None = None,
        relief: Degradation | None = None,
        grammars: Callable[[str], Grammar] | None = None,
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
        self._grammars = lru_cache(4)(grammars) if grammars is not None else None
        self._breakers = lru_cache(4)(self._find_breakers)
        self._on_close = on_close
        self._shelf = shelf or Shelf(self.ledger)
        self._relief = relief
        self.turns = Turns(speculator, self._shelf)
        self._idle = IdleWatch(self.check_memory) if relief is not None else None

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
        return self._speculator.model.capabilities.identity

    @property
    def degradations(self) -> tuple[str, ...]:
        """What is given up now because memory is scarce, in order; see ``Degradation``."""
        return self._relief.degradations if self._relief is not None else ()

    @property
    def session_cache_bytes(self) -> int:
        """Memory that laid aside conversations take."""
        return self._shelf.n_bytes

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
        return self._tokenizer.text(self.known_tokens(tokens))

    def prompt_of(self, prompt: str | Messages, *, raw: bool = False) -> list[int]:
        """Token ids of a prompt as ``generate`` would use it."""
        self._check_open()
        if raw or self._chat_template is None:
            if not isinstance(prompt, str):
                raise PromptError("messages need a chat template", hint="this model has none: give a text")
            return self._tokenizer.tokenize(prompt, add_special=True)
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        if not isinstance(messages, list | tuple) or not all(isinstance(message, Mapping) for message in messages):
            raise PromptError("a prompt is a text or a list of messages", hint='one is {"role": ..., "content": ...}')
        return self.prompt_tokens(self.render(messages))

    def render(self, messages: Messages, *, answer: bool = True, options: Mapping[str, Any] | None = None) -> str:
        """A conversation as the model's template writes it; see ``render_chat``.

        Raises:
            PromptError: there is no template, or it refuses the messages.
        """
        self._check_open()
        if self._chat_template is None:
            raise PromptError("messages need a chat template", hint="this model has none: give a text")
        bos, eos = (self._tokenizer.name(token) for token in (self._tokenizer.bos, self._tokenizer.eos))
        return render_chat(self._chat_template, messages, bos=bos, eos=eos, answer=answer, options=options)

    def prompt_tokens(self, text: str) -> list[int]:
        """Token ids of a rendered conversation."""
        bos = self._tokenizer.name(self._tokenizer.bos)
        # Many templates begin with the begin-of-text token themselves; two of them confuse a model.
        return self.tokenize(text, add_special=not (bos and text.startswith(bos)))

    def is_control(self, token: int) -> bool:
        """Whether a token stands for no text, but for a place in it, such as the end of a message."""
        return not self._tokenizer.token_bytes(token) and bool(self._tokenizer.name(token))

    def spelling(self, token: int) -> bytes:
        """How a rendered conversation writes a token: its bytes, or the name of a control token."""
        return self._tokenizer.token_bytes(token) or self._tokenizer.name(token).encode()

    def ends(self, token: int) -> bool:
        """Whether a token ends a reply."""
        return self._tokenizer.ends(token)

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
        grammar: str | None = None,
        json_schema: str | Mapping[str, Any] | None = None,
        **sampling: Any,
    ) -> Reply:
        """A reply, to be iterated over piece by piece; it is written as it is asked for.

        Args:
            prompt: a text, or messages of a conversation.
            tokens: token ids instead of a prompt.
            raw: continue the text as it is, without the chat template.
            max_tokens: the most tokens to write; as many as fit the context if None.
            stop: texts that end the reply.
            ignore_eos: never let the model end the reply itself.
            seed: fixes the draw; a random one, found in ``.settings.seed``, if None.
            grammar: which replies are possible, in llama.cpp's GBNF; the rule ``root`` is the whole reply.
            json_schema: write JSON that is valid by this schema instead; see ``schema_to_gbnf`` for what it may use.
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
        tokens = self.known_tokens(tokens)
        settings = self.sampler_settings(seed=seed, ignore_eos=ignore_eos, **sampling)
        return self.reply(
            TurnTaking, tokens, settings, max_tokens=max_tokens, stop=stop, grammar=grammar, json_schema=json_schema
        )

    def chat(self, system: str | None = None, **options: Any) -> ChatSession:
        """A conversation with this model; see ``ChatSession`` for the options."""
        from edge_spec.chat import ChatSession

        return ChatSession(self, system=system, **options)

    def sampler_settings(
        self, *, seed: int | None = None, ignore_eos: bool = False, **sampling: Any
    ) -> SamplerSettings:
        """Settings of a sampler for this model, with a random seed if none is given.

        Raises:
            SettingsError: a value out of its range, or an unknown name.
        """
        if ignore_eos:
            ends = (token for token in range(self.n_vocab) if self._tokenizer.ends(token))
            sampling["logit_bias"] = {**sampling.get("logit_bias", {}), **dict.fromkeys(ends, -math.inf)}
        settings = SamplerSettings.of({"seed": secrets.randbits(32) if seed is None else seed, **sampling})
        outside = next((token for token in settings.logit_bias if token >= self.n_vocab), None)
        if outside is not None:
            raise SettingsError(f"logit_bias names token {outside}; this model has {self.n_vocab} tokens")
        return settings

    def reply(
        self,
        kind: type[AnyReply],
        tokens: Sequence[int],
        settings: SamplerSettings,
        *,
        stop: str | Sequence[str] | None = (),
        grammar: str | None = None,
        json_schema: str | Mapping[str, Any] | None = None,
        **more: Any,
    ) -> AnyReply:
        """A reply of this model, of a class that takes its turn."""
        return kind(
            self.turns,
            self._speculator,
            self._new_policy(),
            self._tokenizer,
            tokens,
            settings,
            stop=stops_of(stop),
            grammar=self.grammar_of(grammar, json_schema),
            breakers=self._breakers(settings.dry_breakers) if settings.uses_dry else None,
            before_reply=self._relief.before_reply if self._relief is not None else lambda reply: True,
            before_round=self._relief.before_round if self._relief is not None else lambda reply: True,
            **more,
        )

    def grammar_of(self, text: str | None, schema: str | Mapping[str, Any] | None) -> Grammar | None:
        """The grammar that one of them describes, see ``generate``; None if neither is given."""
        if text is None and schema is None:
            return None
        if text is not None and schema is not None:
            raise SettingsError("give either a grammar or a JSON schema")
        if self._grammars is None:
            raise SettingsError("this model has no grammars", hint="leave the grammar out")
        if schema is not None:
            text = schema_to_gbnf(schema)
        if not isinstance(text, str):
            raise SettingsError(f"a grammar is a text, not {type(text).__name__}", hint="write it in GBNF")
        return self._grammars(text)

    def _find_breakers(self, strings: tuple[str, ...]) -> Breakers:
        names = map(self._tokenizer.name, range(self.n_vocab))
        return find_breakers(strings, names, lambda text: self._tokenizer.tokenize(text, add_special=False))

    def check_memory(self) -> bool:
        """Give memory back where it is scarce, or take some again where there is plenty, if no reply is being written.

        It is called every second by itself; a program that knows better when may call it as well. A look takes one
        step, and none that makes a difference to the text: those are left to replies, which tell.

        Returns:
            Whether it looked.
        """
        if self._relief is None or not self.turns.enter_if_free():
            return False
        try:
            self._relief.between_replies()
        finally:
            self.turns.leave()
        return True

    def close(self) -> None:
        """Cancel what is being written, wait for it to stop, and free everything. Safe to call twice.

        Called from a notice of a reply, it leaves that to the end of the reply.
        """
        self.turns.close(self._free)

    def _free(self) -> None:
        if self._idle is not None:
            self._idle.close()
        self._speculator.close()
        self._on_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def known_tokens(self, tokens: Sequence[int]) -> list[int]:
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
        if self.turns.closed:
            raise Closed("the model")
