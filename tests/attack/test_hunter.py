"""Laws of the hunter: what it plays has no difference, and it finds one where there is one."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from weekly import sizes

from edge_spec.speculation import loop
from edge_spec.speculation.tree import Tree
from edge_spec.speculation.walk import walk

sys.path.insert(0, str(Path(__file__).parent))

from hunter import hunt
from playing import Outcome
from stories import interrupted

pytestmark = [pytest.mark.long, pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux")]


@pytest.mark.parametrize("n_stories", sizes(6, weekly=60))
def test_the_first_stories_have_no_difference(tmp_path: Path, n_stories: int) -> None:
    finds: list[str] = []
    counts, left = hunt(range(n_stories), 3600.0, finds.append, tmp_path, minimizing_s=0)
    assert not finds
    assert left == n_stories
    for kind in ("engine onnx", "engine llama", "asked chat", "asked several", "asked reply", "ended length"):
        assert counts[kind] >= n_stories // 4, kind


def test_a_conversation_that_is_interrupted_has_no_difference(tmp_path: Path) -> None:
    finds: list[str] = []
    counts, left = hunt(range(1), 600.0, finds.append, tmp_path, minimizing_s=0, draw=interrupted)
    assert not finds
    assert left == 1
    assert counts["engine llama"] > 8 and counts["asked chat"] > 8


def test_a_reply_that_was_cancelled_is_a_beginning() -> None:
    """Which may end within a character."""
    whole = Outcome([126, 37, 211, 133], '{"Ђ', "length")
    for tokens, text in (([126, 37], '{"'), ([126, 37, 211], '{"\ufffd'), ([], "")):
        assert not whole.difference(Outcome(tokens, text, "cancelled"))
    for tokens, text in (([126, 38], '{"'), ([126, 37, 211], "{#\ufffd"), ([126, 37, 211, 133, 1], '{"Ђ')):
        assert whole.difference(Outcome(tokens, text, "cancelled"))


def test_a_token_too_many_that_is_accepted_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One in ten rounds takes the first draft for the model's own pick."""
    rounds = []

    def careless(
        tree: Tree, root: int, rows: Any, pick: Any, text: list[int], ends: Callable[[int], bool]
    ) -> tuple[Sequence[int], tuple[int, ...]]:
        path, picked = walk(tree, root, rows, pick, text, ends)
        drafts = [node for node in tree.children(path[-1]) if tree.tokens[node] != picked[-1]]
        rounds.append(path)
        if drafts and len(rounds) % 10 == 0 and not ends(picked[-1]):
            text[-1] = tree.tokens[drafts[0]]
        return path, tuple(text[len(text) - len(picked) :])

    monkeypatch.setattr(loop, "walk", careless)
    finds: list[str] = []
    hunt(range(2), 60.0, finds.append, tmp_path, minimizing_s=2)
    assert any(line.strip().startswith("python tests/attack/hunter.py --story") for line in finds)
