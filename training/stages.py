"""Training a family, stage by stage. A stage reads what earlier ones have written, and skips what is finished."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge_spec.errors import ModelFileError, SettingsError
from edge_spec.training.checkpoint import read_json, write_json
from edge_spec.training.clock import Clock
from edge_spec.training.packing import Corpus
from edge_spec.training.settings import ROLES, Setting

if TYPE_CHECKING:
    from edge_spec.training.model import Llama
    from edge_spec.training.objective import TextLoss
    from edge_spec.training.train import Trainer

__all__ = ["STAGES", "TRAININGS", "Recipe"]

TRAININGS = ("target", "intermediate", "draft", "intermediate-plain", "draft-plain")
"""Names of all trainings, and of their folders; the card compares with the last two, which are not distilled."""

_NAMES = {"target": "target", "intermediate": "intermediate", "draft": "drafter"}
_LOGITS_ROWS = 3
_RENAMED = {"middle": "intermediate", "middle-plain": "intermediate-plain"}
"""Folders of trainings that were made before version 0.2."""


@dataclass(kw_only=True)
class Recipe:
    """What the stages work with.

    Args:
        texts: folder of JSONL files; only ``prepare`` needs it.
        evaluation: folder of JSONL files whose records are kept out of training. Acceptance is measured on prompts of
            ``in_domain_dev.jsonl`` in it, or else of its first file.
        out: folder for all results.
        steps: number of steps by name of training, instead of what setting and time budget say.

    Raises:
        SettingsError: ``out`` has folders with names of an earlier version.
    """

    setting: Setting
    texts: Path | None
    evaluation: Path | None
    out: Path
    seed: int
    device: str
    clock: Clock
    say: Callable[[str], None]
    steps: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for old, new in _RENAMED.items():
            if (self.out / old).is_dir():
                raise SettingsError(f"{self.out / old} is from an earlier version", hint=f"rename that folder to {new}")

    @property
    def vocabulary(self) -> Path:
        """The ``tokenizer.json`` of the family."""
        return self.out / "prepared" / "tokenizer.json"

    @cached_property
    def corpus(self) -> Corpus:
        """The prepared corpus."""
        return self._in_rows(self.setting.row)

    def _in_rows(self, row: int) -> Corpus:
        return Corpus(self.out / "prepared", row=row, weights=self.setting.weights, seed=self.seed)

    @cached_property
    def _text(self) -> TextLoss:
        from edge_spec.training.objective import TextLoss

        setting = self.setting
        short = self._in_rows(setting.short_row) if setting.short_row is not None else None
        return TextLoss(
            self.corpus.batch,
            setting.row,
            short=TextLoss(short.batch, short.row) if short is not None else None,
            share=setting.short_share,
        )

    @property
    def prompts(self) -> Path:
        """The file that acceptance is measured on."""
        found = sorted(self.evaluation.glob("*.jsonl*")) if self.evaluation is not None else []
        if not found:
            raise SettingsError("acceptance needs held-out prompts", hint="give --evaluation a folder of JSONL files")
        return next((path for path in found if path.stem.startswith("in_domain")), found[0])

    def prepare(self) -> None:
        """Clean the texts, make the vocabulary, and write token ids."""
        from edge_spec.training.corpus import Document, read_documents
        from edge_spec.training.evaluate import evaluation_texts
        from edge_spec.training.packing import prepare
        from edge_spec.training.vocabulary import TextEncoder, make_vocabulary

        if (self.out / "prepared" / "corpus.json").is_file():
            return
        if self.texts is None:
            raise SettingsError("there is no prepared corpus yet", hint="give --corpus the folder of the texts")
        setting, texts = self.setting, self.texts
        skip = evaluation_texts(self.evaluation) if self.evaluation is not None else []

        def documents() -> Iterator[Document]:
            return read_documents(texts, limits=setting.limits, valid_share=setting.valid_share, skip=skip)

        if not self.vocabulary.is_file():
            self.say("prepare: making the vocabulary")
            of_training = (document for document in documents() if not document.held_out)
            some = islice(of_training, None, None, setting.vocabulary_every)
            make_vocabulary(some, n_vocab=setting.n_vocab, path=self.vocabulary)
        self.say("prepare: writing token ids")
        counts = prepare(documents(), TextEncoder(self.vocabulary), self.out / "prepared")
        n_tokens, n_bytes = (sum(count[key] for count in counts.values()) for key in ("tokens", "bytes"))
        self.say(f"prepare: {n_tokens:,} tokens of {n_bytes:,} bytes from {len(counts)} sources")

    def target(self) -> None:
        """Train the target on the texts."""
        self._on_text("target", "target").run()

    def samples(self) -> None:
        """Let the target write the text that the smaller models learn from."""
        from edge_spec.training.checkpoint import load_model
        from edge_spec.training.distill import write_samples

        target = load_model(self.out / "target" / "weights.npz", self.device)
        write_samples(
            target,
            self.corpus,
            self.setting.sampling,
            self.out / "samples",
            seed=self.seed,
            device=self.device,
            clock=self.clock,
            say=self.say,
        )

    def intermediate(self) -> None:
        """Train the intermediate model towards the target's distributions."""
        self._distilled("intermediate")

    def draft(self) -> None:
        """Train the drafter towards the target's distributions."""
        self._distilled("draft")

    def plain(self) -> None:
        """Train both smaller models on the texts alone, to measure what distillation gains."""
        for name in TRAININGS[3:]:
            role = name.removesuffix("-plain")
            trainer = self._on_text(name, role)
            # As many steps as the model that it is compared with, which a time budget may have cut.
            trainer.steps = trainer.steps or self._log(role)[-1]["steps"]
            trainer.run()

    def export(self) -> None:
        """Write the family's GGUFs into ``family``, and others, to compare with, into ``more``."""
        from edge_spec.training.card import FILES, write_manifest
        from edge_spec.training.export import export
        from edge_spec.training.sources import sources_of

        sources = sources_of(self.corpus.sources)
        for name in TRAININGS:
            role = name.removesuffix("-plain")
            size = self.setting.shapes[role].n_params
            for kind in ("Q4_0", "F16", "F32"):
                shipped = kind == "Q4_0" and name == role
                path = self.out / "family" / FILES[role] if shipped else self._more(name, kind)
                export(
                    self.out / name / "weights.npz",
                    self.vocabulary,
                    path,
                    kind=kind,
                    sources=sources,
                    name=f"edge-spec demo {_NAMES[role]} {size / 1e6:.1f}M",
                    description="Small model, one of a family of three that share a vocabulary.",
                )
        write_manifest(self.out / "family")
        self.say(f"export: the family is in {self.out / 'family'}")

    def evaluate(self) -> None:
        """Measure what the card reports, on llama.cpp."""
        from edge_spec.training import evaluate
        from edge_spec.training.card import FILES
        from edge_spec.training.held_out import acceptance_of

        family = self.out / "family"
        rows, bytes_per_token = self.corpus.valid(self.setting.valid_rows)
        results: dict[str, Any] = {"models": {}}
        if self.evaluation is not None:
            texts = evaluate.evaluation_texts(self.evaluation)
            different = evaluate.differing_texts(family / FILES["target"], self.vocabulary, texts)
            results["texts"], results["differing_texts"] = len(texts), len(different)
            self.say(f"evaluate: {len(different)} of {len(texts)} texts have different token ids in llama.cpp")
        for role, file in FILES.items():
            log = self._log(role)
            f16 = self._more(role, "F16")
            found = results["models"][role] = {
                "n_params": self.setting.shapes[role].n_params,
                "file_bytes": (family / file).stat().st_size,
                "tokens": log[-1]["tokens"],
                "seconds": log[-1]["seconds"],
                "F16": evaluate.losses_of(f16, rows, bytes_per_token),
                "Q4_0": evaluate.losses_of(family / file, rows, bytes_per_token),
                "logits_differ": {
                    kind: evaluate.largest_difference(
                        self.out / role / "weights.npz", self._more(role, kind), rows[:_LOGITS_ROWS]
                    )
                    for kind in ("F32", "F16")
                },
            }
            self.say(
                f"evaluate: {role}: loss {found['F16']['loss']:.4f} in F16, {found['Q4_0']['loss']:.4f} in Q4_0; "
                f"logits of PyTorch and llama.cpp differ by at most {found['logits_differ']['F32']:.1g} in F32, "
                f"{found['logits_differ']['F16']:.1g} in F16"
            )
        files = {
            name: self._more(name, "Q4_0") if name.endswith("-plain") else family / FILES[name]
            for name in TRAININGS[1:]
        }
        prompts = 40 if self.setting.name == "small" else 180
        results["acceptance_prompts"], results["acceptance_file"] = prompts, self.prompts.name
        results["acceptance"] = acceptance_of(
            family / FILES["target"],
            files,
            self.prompts,
            n_prompts=prompts,
            n_ctx=max(1024, self.setting.row),
            say=self.say,
        )
        # A conversation of three questions should fit a short context as well.
        results["max_answer_tokens"] = min(250, self.setting.row * 250 // 1024)
        results["conversations"] = evaluate.conversations(family, max_tokens=results["max_answer_tokens"])
        write_json(self.out / "results.json", results)

    def card(self) -> None:
        """Write the card, and the log of all trainings next to it."""
        from edge_spec.training.card import card_of

        results = read_json(self.out / "results.json")
        if not set(ROLES) <= set(results["models"]):
            hint = "run the stage evaluate again"
            raise ModelFileError(f"{self.out / 'results.json'} is from an earlier version", hint=hint)
        text = card_of(results, self.setting.as_json(), self.corpus.sources)
        (self.out / "family" / "README.md").write_text(text, encoding="utf-8")
        logs = {name: self._log(name) for name in TRAININGS}
        record = {"setting": self.setting.as_json(), "seed": self.seed, "trainings": logs}
        write_json(self.out / "family" / "training_log.json", record)
        self.say(f"card: {self.out / 'family' / 'README.md'}")

    def _more(self, name: str, kind: str) -> Path:
        return self.out / "more" / f"{name}-{kind.lower()}.gguf"

    def _log(self, name: str) -> list[dict[str, Any]]:
        lines = (self.out / name / "log.jsonl").read_text("utf-8").splitlines()
        return [json.loads(line) for line in lines]

    def _on_text(self, name: str, role: str) -> Trainer[Llama]:
        from edge_spec.training.model import Llama
        from edge_spec.training.train import Trainer

        setting = self.setting
        training = setting.trainings[role]
        return Trainer(
            folder=self.out / name,
            build=lambda: Llama(setting.shapes[role], dropout=training.dropout),
            training=training,
            objective=self._text,
            judge=self._text,
            valid=self.corpus.valid(setting.valid_rows)[0],
            seed=self.seed,
            device=self.device,
            clock=self.clock,
            say=self.say,
            steps=self.steps.get(name),
        )

    def _distilled(self, role: str) -> None:
        from edge_spec.training.checkpoint import load_model
        from edge_spec.training.distill import TeacherLoss, inherit_embedding, read_samples
        from edge_spec.training.train import compile_layers

        target = load_model(self.out / "target" / "weights.npz", self.device)
        target.round_weights()
        compile_layers(target, self.device)
        trainer = self._on_text(role, role)
        trainer.start = partial(inherit_embedding, target.embedding)
        trainer.objective = TeacherLoss(
            target=target,
            text=self._text,
            samples=read_samples(self.out / "samples"),
            share=self.setting.sampling.share,
            seed=self.seed,
        )
        trainer.run()


STAGES = ("prepare", "target", "samples", "intermediate", "draft", "plain", "export", "evaluate", "card")
"""All stages in order; each is a method of ``Recipe``."""
