"""The stages of making a drafter. Each skips what is finished, so the same command continues an interrupted run."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_spec.engines.base import Engine, HiddenRows
from edge_spec.errors import DiskFull
from edge_spec.generation.prompts import PromptBuilder
from edge_spec.models import ModelFile, inspect, kept_tokens, made_drafter_folder
from edge_spec.speculation.pool import Path as TextPath
from edge_spec.tokens.tokenizer import Tokenizer
from edge_spec.training.checkpoint import read_json, whole_file, write_json
from edge_spec.training.clock import Clock
from edge_spec.training.drafter.answers import prepare, read_answers
from edge_spec.training.drafter.begun import begin_with
from edge_spec.training.drafter.card import card_of
from edge_spec.training.drafter.exchanges import exchanges_in
from edge_spec.training.drafter.export import export_drafter
from edge_spec.training.drafter.heads import require_head, target_layers
from edge_spec.training.drafter.hidden import hidden_bytes, write_hidden
from edge_spec.training.drafter.measure import measure
from edge_spec.training.drafter.opened import opened, opened_with_hidden_rows, require_hidden_rows
from edge_spec.training.drafter.portions import Asker, disk_bytes, require_disk, write_portions
from edge_spec.training.drafter.prompts import prompts_in
from edge_spec.training.drafter.reading import AnswerReader, read_portions
from edge_spec.training.drafter.settings import HEAD, MakeSettings
from edge_spec.training.drafter.verdict import pays
from edge_spec.training.drafter.writing import AnswerWriter, texts_of

__all__ = ["DRAFTER", "DrafterMaker"]

DRAFTER, CARD = "drafter.gguf", "README.md"
_PROMPT_TOKENS = 512
_LEAST_TOKENS = 24
"""No more prompts are kept than are asked if all answers to one have so many tokens together."""
_ASKED_WITH = ("target", "answer_tokens", "held_out", "seed")
"""Settings that answers depend on. The others can change until the vocabulary is chosen."""


@dataclass(frozen=True, kw_only=True)
class DrafterMaker:
    """Makes a drafter.

    Args:
        target: whose drafter it is.
        texts: folder of texts.
        out: folder for everything that is made, and for what an interrupted run continues from.
        on: what the target writes on.
        device: PyTorch's, to train on.
        cache_dir: where transcribed models are kept; None for nowhere.
        say: is given lines that report progress.
        head: that learns on, with the vocabulary that it has; None to begin a new one.

    Raises:
        SettingsError: ``out`` was begun for another target or with other settings.
        UnsupportedModel: the target cannot have a head, which is asked for, or ``head`` is none for it.
    """

    target: ModelFile
    texts: Path
    out: Path
    settings: MakeSettings
    on: Engine
    device: str
    clock: Clock
    cache_dir: Path | None
    say: Callable[[str], None]
    head: ModelFile | None = None

    def __post_init__(self) -> None:
        asked = {"target": self.target.fingerprint, "head": self._continued, **self.settings.as_json()}
        if self._is_head:
            require_hidden_rows(self.target, self.on)
            target_layers(self.target)
        if self.head is not None:
            require_head(self.head, self.target)
        begin_with(
            self.out / "settings.json",
            asked,
            defaults={"head": "", **MakeSettings().as_json()},
            only=None if self._is_prepared else _ASKED_WITH,
        )

    def run(self) -> dict[str, Any]:
        """Return all stages; returns what was measured, and under ``pays`` whether the drafter is worth installing.

        Raises:
            TimeIsUp: the time limit is reached; everything is saved.
            DiskFull: the disk is full; what is finished is kept.
        """
        try:
            for stage in (self._ask, self._read, self._prepare, self._hidden, self._train, self._export, self._measure):
                with self._timed(stage.__name__.strip("_")):
                    stage()
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            free = shutil.disk_usage(self.out).free
            hint = "free some space and run the same command again: what is finished is kept"
            needed = max(free + 1, disk_bytes(self._n_tokens, self._hidden_bytes))
            what = f"what is made in {self.out}"
            raise DiskFull(what, needed_bytes=needed, available_bytes=free, hint=hint) from error
        results: dict[str, Any] = read_json(self.out / "results.json")
        return results

    def install(self) -> Path:
        """Put the drafter and its card where ``load`` finds them for this target; returns that folder."""
        folder = made_drafter_folder(self.target)
        for name in (CARD, DRAFTER):
            with whole_file(folder / name) as temporary:
                shutil.copyfile(self.out / name, temporary)
        return folder

    @property
    def _is_head(self) -> bool:
        return self.settings.kind == HEAD

    @property
    def _continued(self) -> str:
        """The fingerprint of the head that learns on; empty where a new one begins."""
        return "" if self.head is None else self.head.fingerprint

    @property
    def _hidden_bytes(self) -> int:
        """Of what is kept of a token for a head."""
        return hidden_bytes(self.target) if self._is_head else 0

    @property
    def _n_tokens(self) -> int:
        """Of all answers."""
        return self.settings.tokens + self.settings.read_answers

    @property
    def _is_prepared(self) -> bool:
        """Whether nothing that answers depend on can change any more."""
        return (self.out / "prepared" / "prepared.json").is_file()

    @property
    def _prompts(self) -> tuple[list[str], list[str]]:
        """Prompts to measure on, and those to learn from."""
        path = self.out / "prompts.json"
        if not path.is_file():
            most = self.settings.held_out + self.settings.tokens // _LEAST_TOKENS + 1
            prompts = prompts_in(self.texts, seed=self.settings.seed, most=max(2, most))
            n_held = min(self.settings.held_out, len(prompts) // 2)
            write_json(path, {"held_out": prompts[:n_held], "asked": prompts[n_held:]})
        found = read_json(path)
        return found["held_out"], found["asked"]

    def _ask(self) -> None:
        """Let the target answer."""
        if self._is_prepared:
            return
        settings = self.settings
        _, prompts = self._prompts
        require_disk(self.out, self._n_tokens, self._hidden_bytes)
        n_ctx = _PROMPT_TOKENS + settings.answer_tokens
        with self._writer(n_ctx) as (model, tokenizer, hidden):
            writer = AnswerWriter(texts_of(model, n_ctx), tokenizer.ends, hidden)
            builder = PromptBuilder(tokenizer, self.target.chat_template, model.n_vocab)
            asker = Asker(writer, builder, prompts, settings.seed)
            write_portions(
                self.out / "answers",
                asker,
                writer,
                settings,
                n_vocab=model.n_vocab,
                longest=_PROMPT_TOKENS,
                clock=self.clock,
                say=self.say,
            )

    def _read(self) -> None:
        """Let the target read answers of others."""
        settings = self.settings
        if self._is_prepared or not settings.read_answers:
            return
        held_out = frozenset(self._prompts[0])
        exchanges = exchanges_in(self.texts, seed=settings.seed, most=settings.read_answers, without=held_out)
        with self._writer(_PROMPT_TOKENS + settings.answer_tokens, exact=False) as (model, tokenizer, hidden):
            builder = PromptBuilder(tokenizer, self.target.chat_template, model.n_vocab)
            reader = AnswerReader(model, builder, hidden, longest=_PROMPT_TOKENS, answer_tokens=settings.answer_tokens)
            read_portions(
                self.out / "answers",
                exchanges,
                reader,
                settings,
                n_vocab=model.n_vocab,
                clock=self.clock,
                say=self.say,
            )

    @contextmanager
    def _writer(self, n_ctx: int, *, exact: bool = True) -> Iterator[tuple[TextPath, Tokenizer, HiddenRows | None]]:
        """The target, and its hidden states where a head is made."""
        how: dict[str, Any] = {"cache_dir": self.cache_dir, "exact": exact}
        if self._is_head:
            layers = target_layers(self.target)
            with opened_with_hidden_rows(self.target, self.on, n_ctx, layers, **how) as found:
                yield found
        else:
            with opened(self.target, self.on, n_ctx, **how) as (model, tokenizer):
                yield model, tokenizer, None

    def _prepare(self) -> None:
        """Choose the vocabulary, and write what is trained on."""
        n_vocab = self.target.n_vocab
        listed = None if self.head is None else kept_tokens(self.target, self.head)
        known = None if listed is None else listed.ids
        n_kept = self.settings.shape(n_vocab).n_vocab - 1 if known is None else len(known)
        prepare(self.out / "answers", self.out / "prepared", n_vocab=n_vocab, n_kept=n_kept, known=known)
        coverage = read_json(self.out / "prepared" / "prepared.json")["coverage"]
        self.say(f"vocabulary: {n_kept:,} of {n_vocab:,} tokens, {coverage:.1%} of the answers")

    def _hidden(self) -> None:
        """Let the target read answers again that were written for a small model, for what a head reads."""
        if self._is_head and not (self.out / "training" / "weights.npz").is_file():
            write_hidden(
                self.out / "answers",
                self.target,
                self.on,
                cache_dir=self.cache_dir,
                clock=self.clock,
                say=self.say,
            )

    def _train(self) -> None:
        """Train the drafter towards what the target expected."""
        folder, prepared = self.out / "training", self.out / "prepared"
        if (folder / "weights.npz").is_file():
            return
        from edge_spec.training.drafter.trainers import DrafterTraining, head_trainer, model_trainer

        training = DrafterTraining(
            target=self.target,
            answers=read_answers(prepared),
            settings=self.settings,
            folder=folder,
            device=self.device,
            clock=self.clock,
            say=self.say,
            head=self.head,
        )
        inherited = False
        if self._is_head:
            run = head_trainer(training, self.out / "answers").run
        else:
            trainer, inherited = model_trainer(training)
            run = trainer.run
        write_json(folder / "start.json", {"inherited": inherited})
        run()

    def _export(self) -> None:
        """Write the drafter's file."""
        if not (self.out / DRAFTER).is_file():
            kept = read_answers(self.out / "prepared").kept
            export_drafter(self.out / "training" / "weights.npz", kept, self.target, self.out / DRAFTER)

    def _measure(self) -> None:
        """Measure it, and write its card."""
        path = self.out / "results.json"
        if path.is_file() and "pays" in read_json(path):
            return
        settings, target, (held, asked) = self.settings, self.target, self._prompts
        measured = measure(
            target,
            self.out / DRAFTER,
            held,
            self.on,
            max_tokens=min(128, settings.answer_tokens),
            cache_dir=self.cache_dir,
            say=self.say,
        )
        draft = inspect(self.out / DRAFTER)
        prepared = read_json(self.out / "prepared" / "prepared.json")
        results = {
            "target": {
                "name": target.name,
                "file": target.path.name,
                "fingerprint": target.fingerprint,
                "quantization": target.quantization,
                "n_vocab": target.n_vocab,
            },
            "drafter": {
                "n_params": draft.n_params,
                "file_bytes": draft.path.stat().st_size,
                "n_kept": draft.n_vocab - 1,
                "continued": self._continued,
                **({"target_layers": target_layers(target)} if self._is_head else {}),
                **read_json(self.out / "training" / "start.json"),
            },
            "data": {**prepared, "prompts": len(asked), "held_out": len(held)},
            "settings": settings.as_json(),
            "seconds": read_json(self.out / "seconds.json"),
            "engine": self.on.title,
            "max_tokens": min(128, settings.answer_tokens),
            "measured": measured,
            "pays": pays(measured),
        }
        with whole_file(self.out / CARD) as temporary:
            temporary.write_text(card_of(results), encoding="utf-8")
        write_json(path, results)

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        """Add the seconds of a stage to those of earlier runs."""
        began_s, path = self.clock.elapsed_s, self.out / "seconds.json"
        stage = "answers" if stage == "ask" else stage
        try:
            yield
        finally:
            seconds = read_json(path) if path.is_file() else {}
            seconds[stage] = round(seconds.get(stage, 0.0) + self.clock.elapsed_s - began_s, 1)
            write_json(path, seconds)
