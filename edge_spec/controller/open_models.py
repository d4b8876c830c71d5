"""The models that work together on one text, opened from their files."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from edge_spec.controller.candidates import NGRAMS, TOKEN_BYTES
from edge_spec.controller.estimates import Estimates
from edge_spec.engines.kv_types import smaller_kv
from edge_spec.engines.llama import LlamaSettings, LlamaWeights, open_llama
from edge_spec.engines.llama.external_vocabulary import ExternalVocabulary, external_vocabulary_bytes
from edge_spec.engines.llama.footprint import listen_to_buffers, loads_mapped
from edge_spec.engines.llama.grammar import grammar_bytes
from edge_spec.engines.onnx import open_onnx, open_published
from edge_spec.engines.onnx.transcription.store import Transcriptions
from edge_spec.engines.probe import ProbeResult
from edge_spec.engines.role_settings import llama_settings, onnx_settings
from edge_spec.errors import BackendError, UnsupportedModel
from edge_spec.memory import Footprint, Ledger, probe, require, usage
from edge_spec.memory.heap import trim_heap
from edge_spec.models import ModelFile
from edge_spec.models.json_tokenizer import JsonTokenizer
from edge_spec.models.onnx import TOKENIZER, PublishedGraph
from edge_spec.speculation.drafters import Drafter
from edge_spec.speculation.language_model import LanguageModel
from edge_spec.speculation.modes import Mode
from edge_spec.tokens.tokenizer import Tokenizer

__all__ = ["OpenFamily"]

_SMALL_PARAMS = 20_000_000
"""Below this many parameters trying out a model takes no time worth a word."""

_GRAMMARS = "grammars"
_FOREIGN = "vocabulary of grammars"

_LESS = "raise --memory, or use a smaller --ctx or another --speculation"


class OpenFamily:
    """Opens target, drafter and intermediate model, each at most once at a time.

    Whoever asks for a model may close it; the family closes what is left, and frees the weights. Before anything
    is loaded, what it will take is claimed in the ledger. Text becomes tokens by llama.cpp, whatever computes, but for
    a published ONNX model as the files beside it say.

    Attributes:
        target_settings: of the target as it is open now.

    Args:
        files: by role: target, and as far as there are any draft and intermediate.
        settings: the target's; the smaller models get the same context and their own threads.
        engines: by the same roles, see ``edge_spec.controller.engine_choice``.
        ledger: where everything that is loaded is claimed before, line by line.
        footprints: what was planned for, by role; what is not in it is estimated when it is opened.
        transcriptions: models for ONNX Runtime; closed with the family.
        cache_dir: where probe results are kept; None for nowhere.
        on_wait: told, in a sentence, what takes long.
    """

    def __init__(
        self,
        files: Mapping[str, ModelFile],
        settings: LlamaSettings,
        *,
        engines: Mapping[str, str],
        ledger: Ledger,
        footprints: Mapping[str, Footprint],
        transcriptions: Transcriptions,
        cache_dir: Path | None,
        on_wait: Callable[[str], None],
    ) -> None:
        self._files = files
        self._settings = self.target_settings = settings
        self.ledger = ledger
        self._footprints = dict(footprints)
        self._engines = engines
        self._transcriptions = transcriptions
        self._cache_dir = cache_dir
        self._on_wait = on_wait
        self._weights: dict[tuple[Path, bool], LlamaWeights] = {}
        self._models: dict[str, LanguageModel] = {}
        self._published: JsonTokenizer | None = None
        self._vocabulary: LlamaWeights | None = None
        # Grammars come from any thread.
        self._lock = threading.RLock()

    def target(self, *, trees: bool) -> tuple[LanguageModel, ProbeResult]:
        """The target, exact, and what probing found."""
        return self._open("target", self._settings, trees=trees)

    def draft(self, *, trees: bool) -> LanguageModel:
        """The drafter's model."""
        return self._open("draft", self._settings, trees=trees)[0]

    def intermediate(self, *, trees: bool) -> LanguageModel:
        """The intermediate model."""
        return self._open("intermediate", self._settings, trees=trees)[0]

    @property
    def n_ctx(self) -> int:
        """The most tokens of a text."""
        return self._settings.n_ctx

    def drafter(self, mode: Mode, target: LanguageModel) -> Drafter:
        """A mode's drafter for a target; what it takes beside its models is claimed before.

        Raises:
            BudgetExceeded: there is no room for its tables.
        """
        n_bytes = mode.n_bytes(self.n_ctx)
        self.ledger.enter("process", NGRAMS, n_bytes)
        drafter = mode.drafter(self, target)
        if n_bytes:
            self.ledger.gauge("process", NGRAMS, lambda: drafter.held_bytes)
        return drafter

    def drop_table(self) -> None:
        """Strike the table out: its drafter is closed."""
        self.ledger.release("process", NGRAMS)

    def smaller_kv(self, fixed: Collection[str]) -> list[tuple[str, str]]:
        """Types of keys and values that the target's cache could still go over to, see ``smaller_kv``."""
        return smaller_kv(self._files["target"], self._engines["target"], self.target_settings, fixed)

    def target_again(self, settings: LlamaSettings, *, trees: bool) -> LanguageModel:
        """The target anew, in place of the one that is closed now, with other settings of its context."""
        self.ledger.release("target")
        self._footprints.pop("target", None)
        model = self._models.pop("target", None)
        if model is not None:
            model.close()
            trim_heap()
        opened = self._open("target", settings, trees=trees)[0]
        self.target_settings = settings
        return opened

    def release(self, role: str) -> None:
        """Close a model and free its weights, if no other model needs them."""
        model = self._models.pop(role, None)
        if model is None:
            return
        model.close()
        path = self._files[role].path
        if all(self._files[other].path != path for other in self._models):
            weights = self._weights.pop((path, False), None)
            if weights is not None:
                weights.close()
        self.ledger.release(role)
        trim_heap()

    def tokenizer(self) -> Tokenizer:
        """The target's tokeniser: that of its weights where llama.cpp holds them, else loaded without them."""
        graph = self._files["target"].graph
        if graph is not None:
            published = self._published_tokenizer(graph)
            self.ledger.gauge("process", TOKEN_BYTES, lambda: published.remembered.held_bytes)
            return published
        weights = self._load("target", vocab_only=self._engines["target"] != "llama")
        self.ledger.gauge("process", TOKEN_BYTES, lambda: weights.remembered.held_bytes)
        return weights

    def vocabulary(self) -> LlamaWeights:
        """The target's tokens as llama.cpp's grammars know them; their memory is claimed with the first grammar.

        Raises:
            BudgetExceeded: there is no memory for grammars, or for the second vocabulary that a published model needs.
        """
        with self._lock:
            if self._vocabulary is None:
                graph = self._files["target"].graph
                tokenizer = self._published_tokenizer(graph) if graph is not None else None
                n_tokens = tokenizer.n_vocab if tokenizer is not None else self._files["target"].n_vocab
                lines = {_GRAMMARS: grammar_bytes(n_tokens)}
                if tokenizer is not None:
                    lines[_FOREIGN] = external_vocabulary_bytes(n_tokens)
                self.ledger.claim_all("process", lines, hint="raise --memory, or leave the grammar out")
                try:
                    self._vocabulary = self._measured_vocabulary(tokenizer)
                except BaseException:
                    self._drop_vocabulary()
                    raise
            return self._vocabulary

    def _measured_vocabulary(self, tokenizer: JsonTokenizer | None) -> LlamaWeights:
        before = usage().resident_bytes
        if tokenizer is None:
            found = self._load("target", vocab_only=self._engines["target"] != "llama")
        else:
            found = self._weights[self._files["target"].path, True] = ExternalVocabulary(tokenizer)
            self.ledger.measure("process", _FOREIGN, max(0, usage().resident_bytes - before))
        return found

    def _drop_vocabulary(self) -> None:
        self._vocabulary = None
        for name in (_GRAMMARS, _FOREIGN):
            self.ledger.release("process", name)

    def _published_tokenizer(self, graph: PublishedGraph) -> JsonTokenizer:
        with self._lock:
            if self._published is None:
                self._published = JsonTokenizer(graph.folder / TOKENIZER, bos=graph.bos, eos=graph.eos, ends=graph.ends)
            return self._published

    def close(self) -> None:
        """Free everything: models, closed already or not, and then the weights below them."""
        for model in self._models.values():
            model.close()
        for weights in self._weights.values():
            weights.close()
        self._weights.clear()
        self._drop_vocabulary()
        self._transcriptions.close()

    def _load(self, role: str, *, vocab_only: bool) -> LlamaWeights:
        file = self._files[role]
        key = (file.path, vocab_only)
        if key not in self._weights:
            self._weights[key] = LlamaWeights(
                file.path,
                repack=self._settings.repack,
                mapped=loads_mapped(file, self._settings),
                vocab_only=vocab_only,
            )
        return self._weights[key]

    def _open(self, role: str, asked: LlamaSettings, *, trees: bool) -> tuple[LanguageModel, ProbeResult]:
        file, on_onnx = self._files[role], self._engines[role] == "onnx"
        settings = llama_settings(role, file, asked, trees=trees)
        footprint = self._footprints.get(role)
        if footprint is None:
            with Estimates(self._files, self._engines) as estimates:
                footprint = estimates.of(role, asked, trees=trees)
        self.ledger.claim_all(role, footprint.lines(), hint=_LESS)
        before = usage().resident_bytes
        try:
            opened = self._open_onnx(role, asked, trees=trees) if on_onnx else self._open_llama(role, settings)
        except (UnsupportedModel, BackendError, MemoryError):
            # The library does not say that memory was the reason; what is left does.
            what = f"{file.path.name} with a context of {settings.n_ctx} tokens"
            require(what, footprint.held_bytes, probe(), hint=_LESS)
            raise
        self.ledger.note_growth(role, usage().resident_bytes - before)
        self._models[role] = opened[0]
        return opened

    def _open_llama(self, role: str, settings: LlamaSettings) -> tuple[LanguageModel, ProbeResult]:
        with listen_to_buffers(lambda name, n_bytes: self.ledger.measure(role, name, n_bytes)):
            return open_llama(
                self._load(role, vocab_only=False),
                settings,
                file=self._files[role].fingerprint,
                cache_dir=self._cache_dir,
                on_probe=lambda: self._announce(role),
            )

    def _open_onnx(self, role: str, asked: LlamaSettings, *, trees: bool) -> tuple[LanguageModel, ProbeResult]:
        file = self._files[role]
        own = onnx_settings(role, file, asked, trees=trees)

        def on_probe() -> None:
            self._announce(role)

        if file.graph is not None:
            if role == "target":
                # While it is loaded it takes more than it keeps: better before the weights.
                self._published_tokenizer(file.graph)
            return open_published(file, own, cache_dir=self._cache_dir, on_probe=on_probe)
        return open_onnx(
            self._transcriptions.of(file), own, file=file.fingerprint, cache_dir=self._cache_dir, on_probe=on_probe
        )

    def _announce(self, role: str) -> None:
        file = self._files[role]
        if role == "target" or file.n_params > _SMALL_PARAMS:
            self._on_wait(f"trying out {file.path.name} on this device, once")
