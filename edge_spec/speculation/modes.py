"""The ways to speculate, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from edge_spec.errors import SettingsError
from edge_spec.speculation.drafters.base import Drafter
from edge_spec.speculation.drafters.hierarchy import HierarchyDrafter
from edge_spec.speculation.drafters.model import ModelDrafter
from edge_spec.speculation.drafters.plain import NoDrafter
from edge_spec.speculation.language_model import LanguageModel

__all__ = ["MODES", "DraftModels", "Mode", "mode_of", "require_models"]


class DraftModels(Protocol):
    """The smaller models that were given along with the target, and what does without, opened on demand."""

    def draft(self, *, trees: bool) -> LanguageModel:
        """The drafter's model."""

    def intermediate(self, *, trees: bool) -> LanguageModel:
        """The intermediate model."""

    def table(self) -> Drafter:
        """What drafts without a model."""


@dataclass(frozen=True, kw_only=True)
class Mode:
    """A way to speculate.

    Attributes:
        name: what the user calls it.
        build: makes the drafter.
        limit: tokens drafted per round, unless asked otherwise; 0 for none.
        needs: which of ``draft`` and ``intermediate`` must be given.
        target_trees: whether the target must take trees.
        adapts: whether the limit follows what is measured.
        lossless: whether the text has the model's own law; a mode that trades it away says so here.
    """

    name: str
    build: Callable[[DraftModels], Drafter]
    limit: int
    needs: tuple[str, ...] = ()
    target_trees: bool = False
    adapts: bool = False
    lossless: bool = True


def _sequence(models: DraftModels) -> Drafter:
    return ModelDrafter(models.draft(trees=False), min_value=0.1)


def _tree(models: DraftModels) -> Drafter:
    return ModelDrafter(models.draft(trees=True), width=3, depth=4, min_value=0.03)


def _hierarchy(models: DraftModels) -> Drafter:
    draft, intermediate = models.draft(trees=True), models.intermediate(trees=True)
    # Published ONNX graphs rarely take trees; between them the leaf drafts sequences.
    if draft.capabilities.takes_trees and intermediate.capabilities.takes_trees:
        leaf = ModelDrafter(draft, width=2, depth=2, min_value=0.1)
    else:
        leaf = ModelDrafter(draft, depth=3, min_value=0.1)
    return HierarchyDrafter(leaf, intermediate)


MODES = {
    mode.name: mode
    for mode in (
        Mode(name="off", build=lambda models: NoDrafter(), limit=0),
        Mode(name="sequence", build=_sequence, limit=3, needs=("draft",)),
        Mode(name="tree", build=_tree, limit=7, needs=("draft",), target_trees=True),
        Mode(name="hierarchy", build=_hierarchy, limit=4, needs=("draft", "intermediate")),
        Mode(name="ngram", build=lambda models: models.table(), limit=3),
    )
}
"""Every mode that has a name. ``auto`` is no mode of its own: it chooses one of them and lets it adapt."""


def mode_of(name: str, *, given: frozenset[str]) -> Mode:
    """The mode of that name. ``auto`` is ``sequence`` where a drafter is given, else ``ngram``, and adapts.

    Raises:
        SettingsError: no such mode.
    """
    if name == "auto":
        chosen = MODES["sequence" if "draft" in given else "ngram"]
        return Mode(name=chosen.name, build=chosen.build, limit=7, needs=chosen.needs, adapts=True)
    if not isinstance(name, str) or name not in MODES:
        raise SettingsError(f"there is no speculation {name!r}", hint=f"choose auto, {', '.join(MODES)}")
    return MODES[name]


def require_models(mode: Mode, given: frozenset[str]) -> None:
    """Refuse a mode that lacks a model.

    Raises:
        SettingsError: ``given`` (of draft, intermediate) is not all that it needs.
    """
    missing = [f"--{need}" for need in mode.needs if need not in given]
    if missing:
        raise SettingsError(
            f"speculation {mode.name!r} needs {' and '.join(missing)}", hint="give the missing model, or choose 'auto'"
        )
