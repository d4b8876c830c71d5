"""What the models of a family take, asked before anything of them is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from typing import Self

from edge_spec.engines.llama import DryModel, LlamaSettings, llama_footprint
from edge_spec.engines.onnx import OnnxSettings, onnx_footprint
from edge_spec.engines.role_settings import own_settings
from edge_spec.memory import Footprint, vocabulary_bytes
from edge_spec.models import ModelFile
from edge_spec.models.json_tokenizer import loading_peak_bytes, tokenizer_bytes

__all__ = ["Estimates"]


class Estimates:
    """Footprints by role and settings; plans and whoever opens a context anew ask the same one.

    A context manager: it holds dry models meanwhile.

    Args:
        files: by role.
        engines: by role.
    """

    def __init__(self, files: Mapping[str, ModelFile], engines: Mapping[str, str]) -> None:
        self._files = files
        self._engines = engines
        self._dry: dict[str, DryModel] = {}
        self._known: dict[tuple[str, LlamaSettings | OnnxSettings, bool], Footprint] = {}
        self._open = ExitStack()

    def of(self, role: str, settings: LlamaSettings, *, trees: bool, dry: bool = True) -> Footprint:
        """The footprint of a role's model.

        Args:
            settings: the target's.
            dry: ask the library for what only it knows, instead of guessing.
        """
        file = self._files[role]
        own = own_settings(self._engines[role], role, file, settings, trees=trees)
        key = (role, own, dry)
        if key not in self._known:
            if isinstance(own, OnnxSettings):
                found = onnx_footprint(file, own)
                size = file.graph.tokenizer if file.graph is not None else None
                if role == "target" and size is not None:
                    tables = tokenizer_bytes(size)
                    # It comes before the weights.
                    more = loading_peak_bytes(size) - tables - found.weight_bytes
                    found = replace(found, vocabulary_bytes=tables, loading_bytes=max(found.loading_bytes, more))
                elif role == "target":  # llama.cpp turns text into tokens
                    tables = vocabulary_bytes(file.vocabulary.n_tokens, file.n_merges)
                    found = replace(found, vocabulary_bytes=tables)
            else:
                found = llama_footprint(file, own, dry=self._dry_model(role) if dry else None)
            self._known[key] = found
        return self._known[key]

    def _dry_model(self, role: str) -> DryModel:
        if role not in self._dry:
            self._dry[role] = self._open.enter_context(DryModel(self._files[role]))
        return self._dry[role]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()
