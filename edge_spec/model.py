"""``TextModel``: a loaded model that writes text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Unpack, overload

from edge_spec.errors import Closed, NoNumbers, PromptError, Sentence, SettingsError
from edge_spec.generation.closing import Closing
from edge_spec.generation.context import Context, MemoryGuard
from edge_spec.generation.options import REPLY_OPTIONS, ReplyKeywords, ReplyOptions, ignore
from edge_spec.generation.prefix_cache import TEXTS, PrefixCache
from edge_spec.generation.prompts import Prompt, PromptBuilder
from edge_spec.generation.replies import Asked, Replies, attempts
from edge_spec.generation.reply import Reply
from edge_spec.generation.request import ReplyRequest, RequestBuilder
from edge_spec.generation.scheduler import Scheduler
from edge_spec.generation.sequence import Recorder
from edge_spec.generation.thinking import Think, template_options_of, think_of
from edge_spec.generation.tools.chat_prompts import prompt_tokens
from edge_spec.generation.tools.functions import callable_functions
from edge_spec.model_info import ModelInfo
from edge_spec.models import ModelFile
from edge_spec.models.gguf.damage import without_numbers
from edge_spec.options import documented
from edge_spec.sampling import SamplerSettings
from edge_spec.sampling.grammar import Grammar
from edge_spec.sampling.lark import Lark
from edge_spec.speculation.drafters.base import Choice, Decision
from edge_spec.speculation.follower import Follower
from edge_spec.speculation.language_model import NumericsProfile
from edge_spec.speculation.statistics import Statistics
from edge_spec.speculation.target import Target
from edge_spec.tokens.tokenizer import Tokenizer

if TYPE_CHECKING:
    from edge_spec.chat import ChatSession
    from edge_spec.chat.session import ChatKeywords
    from edge_spec.controller.measurements import Gain

__all__ = ["TextModel"]


class TextModel(Closing):
    """A loaded model with its drafter. A context manager; usable from any thread.

    Replies can be read side by side, by one thread or many: on an engine whose cells hold several texts a decode
    advances all of them, and on others they take turns.

    Args:
        target: target and drafter.
        next_limit: called before every round for the most tokens to draft.
        tokenizer: the target's.
        chat_template: how the model writes conversations; None if it does not.
        prefix_cache: which of the target's cells, and what copies of them, serve texts to come.
        guard: looks after memory.
        grammars: makes a grammar of its text.
        files: the target and the smaller models that were given, by role; for ``info``.
        name: what people call it; for ``info``.
        on_close: called when everything is freed.

    Attributes:
        mode: the name of the way it speculates.
        lossless: whether the text has the model's own distribution.
        notes: sentences that the user should know, such as why it does not speculate.
        ledger: who holds which bytes, and the rest of the memory budget.
        worker: the thread that computes.
        keep_gain: stores the speed-up of its drafts.
        prefix_cache: which of the target's cells, and what copies of them, serve texts to come.
    """

    def __init__(
        self,
        target: Target,
        next_limit: Callable[[], int],
        tokenizer: Tokenizer,
        *,
        mode: str,
        lossless: bool = True,
        chat_template: str | None = None,
        notes: Sequence[str] = (),
        prefix_cache: PrefixCache | None = None,
        guard: MemoryGuard | None = None,
        grammars: Callable[[Lark], Grammar] | None = None,
        files: Mapping[str, ModelFile] | None = None,
        name: str = "",
        keep_gain: Callable[[Gain], None] = ignore,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self._files = dict(files or {})
        file = self._files.get("target")
        self._recommended_sampling = file.sampling if file is not None else {}
        self._name = name or (file.name if file is not None else "")
        self.mode = mode
        self.lossless = lossless
        self.notes = tuple(notes)
        self._scheduler = Scheduler(target, tokenizer, prefix_cache, guard, partial(_explained, file))
        self.worker, self.prefix_cache = self._scheduler.worker, self._scheduler.prefix_cache
        self.ledger = self.prefix_cache.ledger
        self._prompts = PromptBuilder(tokenizer, chat_template, target.pool.n_vocab)
        self._requests = RequestBuilder(
            tokenizer, target.pool.n_vocab, grammars, self._recommended_sampling, chat_template or ""
        )
        self._next_limit = next_limit
        self.keep_gain = keep_gain
        self._on_close = on_close
        self._is_guarded = guard is not None

    def __repr__(self) -> str:
        state = ", closed" if self.worker.is_closed else ""
        name = f"{self._name}, " if self._name else ""
        return f"<TextModel {name}{self.profile.name}: n_ctx {self.n_ctx}, speculation {self.mode}{state}>"

    @property
    def prompts(self) -> PromptBuilder:
        """Writes prompts in the model's tokens.

        Raises:
            Closed: the model is closed.
        """
        if self.worker.is_closed:
            raise Closed("the model")
        return self._prompts

    def tokenize(self, text: str, *, add_special: bool = True) -> list[int]:
        """Token ids of a text."""
        return self.prompts.tokenize(text, add_special=add_special)

    def detokenize(self, tokens: Sequence[int]) -> str:
        """Return the text of token ids, without control tokens."""
        return self.prompts.detokenize(tokens)

    def prompt_of(
        self,
        prompt: Prompt,
        *,
        raw: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_options: Mapping[str, Any] = MappingProxyType({}),
        think: Think = None,
        answer: bool = True,
        continues: bool = False,
        must_fit: bool = False,
    ) -> list[int]:
        """Token ids of a prompt, a text or messages, as ``generate`` would use it with these tools.

        Args:
            template_options: further names for the chat template, such as ``enable_thinking``.
            think: whether the model is to think, or how much: True, False or a level such as ``low``.
            answer: end with what comes before an answer.
            continues: end within the last message instead, after its text.
            must_fit: raise ``PromptTooLong`` if the context has no room for it.
        """
        functions, _ = callable_functions(tools, "auto")
        n_ctx = self.n_ctx if must_fit else None
        return prompt_tokens(
            self.prompts,
            prompt,
            functions,
            raw=raw,
            options=template_options,
            think=think_of(think),
            answer=answer,
            continues=continues,
            n_ctx=n_ctx,
        )

    def count_tokens(
        self, prompt: Prompt, *, raw: bool = False, tools: Sequence[Mapping[str, Any]] | None = None
    ) -> int:
        """Return how many tokens of the context a prompt takes, chat template included."""
        return len(self.prompt_of(prompt, raw=raw, tools=tools))

    @overload
    def generate(
        self,
        prompt: Prompt | None = None,
        *,
        tokens: Sequence[int] | None = None,
        n: None = None,
        **options: Unpack[ReplyKeywords],
    ) -> Reply: ...

    @overload
    def generate(
        self,
        prompt: Prompt | None = None,
        *,
        tokens: Sequence[int] | None = None,
        n: int,
        **options: Unpack[ReplyKeywords],
    ) -> Replies: ...

    @documented(REPLY_OPTIONS)
    def generate(
        self,
        prompt: Prompt | None = None,
        *,
        tokens: Sequence[int] | None = None,
        n: int | None = None,
        **options: Unpack[ReplyKeywords],
    ) -> Reply | Replies:
        """Return a reply to iterate over; its text is written when it is read.

        Args:
            prompt: a text, or messages of a conversation.
            tokens: token ids instead of a prompt.
            n: number of replies to the prompt, if not one: the ``Replies`` with ``attempt`` 0, 1, 2 and so on of
                the same seed, written together where the engine can.
            **options: see below. Where a setting of the sampler is not given, what is recommended for the model (see
                ``info.sampling``), and else its default; ``.settings`` of the reply has them all.

        Raises:
            SettingsError, PromptError, PromptTooLong, Closed.
        """
        asked, prompts = ReplyOptions.of(options), self.prompts
        if prompt is None and tokens is None:
            raise SettingsError("there is no prompt", hint=Sentence("give a text, messages, or {tokens}"))
        if prompt is not None and tokens is not None:
            raise SettingsError(Sentence("{prompt} and {tokens} are both given"), hint="give one of them")
        if tokens is None:
            assert prompt is not None
            tokens = self._tokens_of(prompt, asked)
        request = self._request(prompts.known(tokens), asked)
        if n is not None:
            return self._replies(attempts([request], n), asked)
        return Reply(self._scheduler, request, self._next_limit)

    @documented(REPLY_OPTIONS)
    def generate_many(self, prompts: Iterable[Prompt], **options: Unpack[ReplyKeywords]) -> Replies:
        """Return replies to several prompts, written together where the engine can; each is what it would be alone.

        Args:
            prompts: texts, or messages of conversations. One that is empty or too long is an error of its reply only.
            **options: as for ``generate``; one seed and one time limit for all.

        Raises:
            SettingsError, Closed.
        """
        asked = ReplyOptions.of(options)
        if isinstance(prompts, str) or not isinstance(prompts, Iterable):
            what = "one text" if isinstance(prompts, str) else type(prompts).__name__
            raise SettingsError(
                f"is {what}", argument="prompts", hint=Sentence("give a list of texts, or use {generate()}")
            )
        settings = self._requests.settings(asked)
        # Check these once: a mistake concerns all replies.
        self._request([0], asked, settings)

        def asked_for(prompt: Prompt) -> Asked:
            try:
                return Asked(settings=settings, request=self._request(self._tokens_of(prompt, asked), asked, settings))
            except PromptError as error:
                return Asked(settings=settings, error=error)

        return self._replies([asked_for(prompt) for prompt in prompts], asked)

    def chat(self, system: str | None = None, **options: Unpack[ChatKeywords]) -> ChatSession:
        """Return a conversation with this model; see ``ChatSession`` for the options."""
        from edge_spec.chat import ChatSession

        return ChatSession(self, system=system, **options)

    def sampler_settings(self, **options: Unpack[ReplyKeywords]) -> SamplerSettings:
        """Return settings of a sampler for this model, with a random seed if none is given; see ``generate``.

        Raises:
            SettingsError: a value out of its range, or an unknown name.
        """
        return self._requests.settings(ReplyOptions.of(options))

    def check_options(self, **options: Unpack[ReplyKeywords]) -> None:
        """Raise if a reply of this model cannot have these options.

        Raises:
            SettingsError: a value out of its range, an unknown name, a grammar that is not valid, or a way to think
                that its chat template does not know.
        """
        asked = ReplyOptions.of(options)
        template_options_of(self.prompts.chat_template, asked.think)
        self._requests.settings(asked)
        self._requests.constrained(asked, "")

    def reply(
        self,
        tokens: Sequence[int],
        settings: SamplerSettings | None = None,
        *,
        written: Sequence[int] = (),
        drawn: Mapping[str, float] = MappingProxyType({}),
        context: Context | None = None,
        recorder: Recorder | None = None,
        next_limit: Callable[[], int] | None = None,
        **options: Unpack[ReplyKeywords],
    ) -> Reply:
        """Return a reply to token ids, for those who keep conversations themselves.

        Args:
            settings: of the sampler; if None what ``options`` say.
            written, drawn: continue a reply, see ``ReplyRequest``.
            context: keeps the text inside the model's context.
            recorder: keeps what becomes of the reply.
            next_limit: called before every round for the most tokens to draft; the model's own if None.
            **options: as for ``generate``.
        """
        asked = ReplyOptions.of(options)
        request = self._request(tokens, asked, settings, written=written, drawn=drawn)
        return Reply(self._scheduler, request, next_limit or self._next_limit, context=context, recorder=recorder)

    def requests(
        self,
        prompts: Iterable[Sequence[int]],
        settings: SamplerSettings | None = None,
        **options: Unpack[ReplyKeywords],
    ) -> list[ReplyRequest]:
        """Return what replies to token ids of each prompt are asked for, checked, for those who make prompts
        themselves; see ``reply``."""
        asked = ReplyOptions.of(options)
        settings = settings or self._requests.settings(asked)
        return [self._request(tokens, asked, settings) for tokens in prompts]

    def replies(
        self, requests: Sequence[ReplyRequest], *, n: int = 1, next_limit: Callable[[], int] | None = None
    ) -> Replies:
        """Return ``n`` replies to each of some ``requests``, which share their options; see ``reply``."""
        return self._replies(attempts(requests, n), requests[0].options, next_limit)

    def _replies(
        self,
        wanted: Sequence[Asked],
        asked: ReplyOptions,
        next_limit: Callable[[], int] | None = None,
    ) -> Replies:
        return Replies(
            self._scheduler,
            wanted,
            next_limit or self._next_limit,
            timeout=asked.timeout,
            on_notice=asked.on_notice,
        )

    def _tokens_of(self, prompt: Prompt, asked: ReplyOptions) -> list[int]:
        shown, _ = callable_functions(asked.tools, asked.tool_choice)
        return prompt_tokens(self.prompts, prompt, shown, raw=asked.raw, think=asked.think)

    def _request(
        self, tokens: Sequence[int], asked: ReplyOptions, settings: SamplerSettings | None = None, **state: Any
    ) -> ReplyRequest:
        return self._requests.request(tokens, asked, settings, opening=self.prompts.opening(tokens), **state)

    @property
    def info(self) -> ModelInfo:
        """A description of the model now."""
        target = self._files.get("target")
        sampling = SamplerSettings.valid(self._recommended_sampling)
        return ModelInfo(
            name=self._name or self.profile.name,
            title=target.name if target else "",
            files={role: file.path for role, file in self._files.items()},
            architecture=target.architecture if target else "",
            quantization=target.quantization if target else "",
            n_params=target.n_params if target else 0,
            weight_bytes=target.weight_bytes if target else 0,
            n_ctx_train=target.n_ctx_train if target else 0,
            engine=self.profile.engine,
            n_ctx=self.n_ctx,
            n_vocab=self.n_vocab,
            has_chat_template=self.has_chat_template,
            speculation=self.mode,
            drafter=self.drafter_name,
            lossless=self.lossless,
            identity=self.identity,
            profile=self.profile.name,
            sampling=sampling,
            sampling_by=target.sampling_by if target and sampling else "",
            budget_bytes=self.ledger.budget_bytes,
            held_bytes=self.ledger.held_bytes,
        )

    @property
    def file(self) -> ModelFile | None:
        """What the file of the target says; None where there is none."""
        return self._files.get("target")

    @property
    def n_ctx(self) -> int:
        """The most tokens of prompt and reply together."""
        return self._scheduler.target.pool.n_ctx

    @property
    def n_vocab(self) -> int:
        """Number of token ids."""
        return self._scheduler.target.pool.n_vocab

    @property
    def has_chat_template(self) -> bool:
        """Whether the model has a chat template."""
        return self._prompts.chat_template is not None

    @property
    def profile(self) -> NumericsProfile:
        """Everything that rounds; equal profiles, prompts, settings and seeds give equal text."""
        return self._scheduler.target.pool.profile

    @property
    def identity(self) -> str:
        """``bitwise``: drafts change no bit. ``rounding``: this device computes rows of some widths differently."""
        return self._scheduler.target.pool.capabilities.identity

    @property
    def drafter_name(self) -> str:
        """The current mode of drafting; ``off`` if there is none. Without memory it may be less than ``mode`` says."""
        return self._scheduler.target.drafter.name

    @property
    def choices(self) -> Mapping[str, Choice]:
        """The choices of ``auto`` in the last reply, with its statistics of each; empty in other modes."""
        return self._scheduler.target.drafter.choices

    @property
    def decision(self) -> Decision | None:
        """The last decision of ``auto`` in the last reply, with its numbers."""
        return self._scheduler.target.drafter.decision

    def speed_up(self, done: Statistics) -> float | None:
        """The estimated speed-up of a reply of this model over decoding without drafts, by the time that ``auto`` has
        measured for plain rounds here. None where nothing was drafted, or not by ``auto``, or where rounds were shared
        with other texts, whose time without drafts is not known."""
        plain = self.choices.get("off")
        if plain is None or not plain.round_s or not done.drafted or not done.decode_s or done.shared:
            return None
        return done.tokens * plain.round_s / done.decode_s

    @property
    def followed(self) -> Mapping[str, Follower]:
        """The models that are open and the texts that they follow, for inspection: ``target``, and the drafter's."""
        return self._scheduler.target.latest.followed

    @property
    def most_texts(self) -> int:
        """The most replies that one decode can advance."""
        return self._scheduler.target.most_texts

    @property
    def live_texts(self) -> int:
        """Replies that are being written now."""
        return self._scheduler.n_live

    @property
    def cells(self) -> Mapping[str, int]:
        """Cells of the KV cache, a token each: ``all`` of them, those that are ``free``, which no text holds, and those
        that are ``shared``, which several hold.

        Empty where the engine holds a single text.
        """
        pool = self._scheduler.target.pool
        return {} if pool.max_paths == 1 else {"all": pool.n_cells, "free": pool.n_free, "shared": pool.n_shared}

    @property
    def evicted_cells(self) -> int:
        """Number of cells evicted so far for other texts."""
        return self.prefix_cache.n_evicted

    @property
    def rows(self) -> Mapping[str, int]:
        """Number of rows that the target has computed, by purpose: ``prompt``, ``text`` (its next token), ``draft``."""
        return dict(self._scheduler.rows)

    @property
    def degradations(self) -> tuple[str, ...]:
        """The reductions that apply now because memory is scarce, in order."""
        return self._scheduler.guard.degradations

    @property
    def session_cache_bytes(self) -> int:
        """Memory that the caches of suspended conversations take."""
        return self.prefix_cache.n_bytes

    def check_memory(self) -> bool:
        """Reduce memory if it is scarce, or restore what was reduced if there is plenty, unless a reply is active.

        Called once a second by itself; a program that knows when memory changes may call it as well. Each call takes at
        most one step, and none that changes the text: those are left to replies, which can tell.

        Returns:
            Whether it looked.
        """
        if not self._is_guarded or self.worker.is_here or not self._scheduler.is_idle:
            return False
        with suppress(Closed), self.worker.pause():
            return self._scheduler.look_after_memory()
        return False

    @property
    def spare_bytes(self) -> int:
        """Bytes of caches of texts, and of drafters: what ``give_way`` can free."""
        owners = ("draft", "intermediate", "sessions")
        return sum(
            line.predicted_bytes for line in self.ledger if line.owner in owners or (line.owner, line.name) == TEXTS
        )

    def give_way(self) -> bool:
        """Free memory for others by one step that changes no text: first caches of texts, then drafters.

        What was dropped returns when there is room again.

        Returns:
            Whether there was such a step; False while a reply is written.
        """
        if self.worker.is_here or not self._scheduler.is_idle:
            return False
        with suppress(Closed), self.worker.pause():
            return self._scheduler.give_way()
        return False

    def close(self) -> None:
        """Cancel what is being written, wait for it to stop, and free everything. Safe to call twice.

        Called by something that computes, such as a drafter, it leaves that to the end of the step.
        """
        self._scheduler.close(self._free)

    def _free(self) -> None:
        self._scheduler.target.close()
        self._on_close()


def _explained(file: ModelFile | None, error: BaseException) -> BaseException:
    """Return an error of the target with the name of its file, and of the weights at fault if they are found."""
    if file is None or not isinstance(error, NoNumbers):
        return error
    tensor = None
    with suppress(OSError):
        tensor = without_numbers(file.tensors)
    return NoNumbers(file.path.name, tensor)
