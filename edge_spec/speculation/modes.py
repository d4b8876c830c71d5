"""The ways to speculate, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from edge_spec.errors import Arguments, Sentence, SettingsError
from edge_spec.options import require_one_of
from edge_spec.speculation.chooser import Chooser
from edge_spec.speculation.drafters.base import Drafter
from edge_spec.speculation.drafters.hierarchy import HierarchyDrafter
from edge_spec.speculation.drafters.leaf import LeafDrafter
from edge_spec.speculation.drafters.model import ModelDrafter
from edge_spec.speculation.drafters.ngram import NgramDrafter, table_bytes
from edge_spec.speculation.drafters.plain import NoDrafter
from edge_spec.speculation.pool import Path

__all__ = ["MODES", "DraftModels", "Mode", "mode_of", "require_models"]


_SIBLINGS = 3


class DraftModels(Protocol):
    """The smaller models that were given along with the target, opened on demand."""

    @property
    def takes_trees(self) -> bool:
        """Whether the target decodes trees."""

    @property
    def seconds(self) -> Mapping[int, float]:
        """First estimates of the seconds that a decode of the target takes, by its number of rows."""

    @property
    def draft_reads_intermediate(self) -> bool:
        """Whether the drafter is a head on the intermediate model."""

    def remember(self, name: str, learner: Chooser) -> None:
        """Let a learner begin with what it learned in an earlier run, and keep what it learns in this one.

        Args:
            name: unique within a mode.
        """

    def draft(self, *, trees: bool) -> Path:
        """Return the drafter's model."""

    def intermediate(self, *, trees: bool) -> Path:
        """Return the intermediate model."""


@dataclass(frozen=True, kw_only=True)
class Mode:
    """A way to speculate.

    Attributes:
        name: what the user calls it.
        build: makes the drafter.
        limit: tokens drafted per round, unless asked otherwise; 0 for none.
        needs: which of ``draft`` and ``intermediate`` must be given.
        n_bytes: the most memory that the drafter's own tables take for a context of so many tokens.
        target_trees, draft_trees: whether the target, or the smaller models, must take trees.
        lossless: whether the text has the model's own distribution; a mode that trades it away says so here.
    """

    name: str
    build: Callable[[DraftModels], Drafter]
    limit: int
    needs: tuple[str, ...] = ()
    n_bytes: Callable[[int], int] = lambda n_ctx: 0
    target_trees: bool = False
    draft_trees: bool = False
    lossless: bool = True


def _ngram(models: DraftModels) -> Drafter:
    return NgramDrafter()


def _sequence(models: DraftModels) -> Drafter:
    return ModelDrafter(models.draft(trees=False), min_value=0.1)


def _tree(models: DraftModels) -> Drafter:
    return ModelDrafter(models.draft(trees=True), width=3, depth=4, min_value=0.03)


def _choice(models: DraftModels, *drafters: Drafter) -> Drafter:
    chooser = Chooser([*drafters, _ngram(models)], seconds=models.seconds)
    models.remember("text", chooser)
    return chooser


def _auto_sequence(models: DraftModels) -> Drafter:
    return _choice(models, _path(models.draft(trees=False), siblings=models.takes_trees))


def _auto_hierarchy(models: DraftModels, *, has_draft: bool = True) -> Drafter:
    intermediate = models.intermediate(trees=True)
    takes_trees = intermediate.capabilities.takes_trees
    path = [_path(models.draft(trees=True), siblings=takes_trees)] if has_draft else []
    # The leaf decides alone how far to speed up the intermediate model, or not at all.
    leaf = Chooser([*path, _ngram(models)], seconds=models.seconds)
    models.remember("leaf", leaf)
    hierarchy = HierarchyDrafter(leaf, intermediate, leaf_limit=leaf.most, width=_SIBLINGS if models.takes_trees else 1)
    # The smallest model alone pays where the intermediate one is slow beside the target; a head reads that one.
    alone = path if (models.takes_trees or not takes_trees) and not models.draft_reads_intermediate else []
    return _choice(models, hierarchy, *(LeafDrafter(hierarchy, drafter) for drafter in alone))


def _path(model: Path, *, siblings: bool) -> Drafter:
    """Return the likeliest path, with the siblings along it.

    Where to stop, and which to verify, is the chooser's to say.
    """
    return ModelDrafter(model, width=_SIBLINGS if siblings else 1, beam=1)


def _hierarchy(models: DraftModels) -> Drafter:
    intermediate = models.intermediate(trees=True)
    draft = models.draft(trees=True)
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
        Mode(name="tree", build=_tree, limit=7, needs=("draft",), target_trees=True, draft_trees=True),
        Mode(name="hierarchy", build=_hierarchy, limit=4, needs=("draft", "intermediate"), draft_trees=True),
        Mode(name="ngram", build=_ngram, limit=3, n_bytes=table_bytes),
    )
}
"""Every mode that has a name. ``auto`` is not a mode of its own, see ``mode_of``."""


def _auto(name: str, build: Callable[[DraftModels], Drafter], *needs: str, n_tables: int = 1) -> Mode:
    return replace(MODES[name], build=build, limit=9, needs=needs, n_bytes=partial(_tables_bytes, n_tables))


def _tables_bytes(n_tables: int, n_ctx: int) -> int:
    return n_tables * table_bytes(n_ctx)


_AUTO = {
    frozenset({"draft", "intermediate"}): _auto("hierarchy", _auto_hierarchy, "draft", "intermediate", n_tables=2),
    frozenset({"draft"}): _auto("sequence", _auto_sequence, "draft"),
    # An intermediate model without a drafter below it has n-grams as its leaf.
    frozenset({"intermediate"}): _auto(
        "hierarchy", partial(_auto_hierarchy, has_draft=False), "intermediate", n_tables=2
    ),
    frozenset(): _auto("ngram", _choice),
}
"""What ``auto`` is, by the smaller models that are given."""


def mode_of(name: str, *, given: frozenset[str]) -> Mode:
    """Return the mode of that name.

    ``auto`` drafts by n-grams and, where smaller models are given, by those, each round by what pays most, or by none.
    It bears the name of the mode that needs the same models: ``hierarchy``, ``sequence`` or ``ngram``.

    Raises:
        SettingsError: there is no such mode.
    """
    if not isinstance(name, str):
        hint = "one of your own is Mode(name='mine', build=lambda models: MyDrafter(), limit=4)"
        raise SettingsError(f"is {name!r} and must be the name of a mode, or a Mode", argument="speculation", hint=hint)
    require_one_of("speculation", name, ("auto", *MODES))
    if name == "auto":
        return _AUTO[frozenset(given) & {"draft", "intermediate"}]
    return MODES[name]


def require_models(mode: Mode, given: frozenset[str]) -> None:
    """Refuse a mode that lacks a model.

    Raises:
        SettingsError: ``given`` (of draft, intermediate) is not all that it needs.
    """
    missing = [f"{{{need}}}" for need in mode.needs if need not in given]
    if missing:
        raise SettingsError(
            Sentence(f"needs {' and '.join(missing)} for {mode.name!r}"),
            argument="speculation",
            hint=Sentence("give the missing model, or use {instead}", instead=Arguments(speculation="auto")),
        )
