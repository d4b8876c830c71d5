"""Laws of recovery: what costs no word comes back when there is memory again, and only that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from scarce_memory import ASKED, PLENTY, SCARCE, Change, changed

from edge_spec import TextModel
from edge_spec.engines.base import ModelSettings, OpenedModel


@pytest.mark.long
@pytest.mark.parametrize("engine", ["llama", "onnx"])
def test_what_changes_words_stays_released_and_the_rest_comes_back(load: Callable[..., TextModel], engine: str) -> None:
    scarce = True

    def decide() -> int:
        return PLENTY if not scarce else SCARCE if len(model.degradations) < 3 else 150

    with load(decide, engine=engine) as model:
        drafter = model.drafter_name
        model.generate(ASKED[0], seed=1, max_tokens=30, ignore_eos=True).read()
        profile, degradations, scarce = model.profile, model.degradations, False
        assert model.drafter_name != drafter
        model.generate(ASKED[0], seed=1, max_tokens=60, ignore_eos=True).read()
        assert (model.profile, model.degradations) == (profile, degradations[2:])
        assert model.drafter_name == drafter
        assert {line.owner for line in model.ledger} >= {"target", "intermediate", "draft"}
        model.ledger.check_integrity()


@pytest.mark.long
@pytest.mark.parametrize("missing", ["intermediate", "draft"])
def test_a_step_up_that_fails_leaves_what_worked_and_nothing_else(
    load: Callable[..., TextModel], opening: Callable[[Change], None], missing: str
) -> None:
    wanted, scarce = {"intermediate": 1, "draft": 2}[missing], True
    with load(lambda: (SCARCE if len(model.degradations) < wanted else 150) if scarce else PLENTY) as model:
        for _ in range(4):
            model.check_memory()
        degradations, drafter = model.degradations, model.drafter_name
        held = {(line.owner, line.name) for line in model.ledger}
        n_opened = 0

        def fails(settings: ModelSettings, open_it: Callable[[], OpenedModel]) -> OpenedModel:
            nonlocal n_opened
            n_opened += 1
            # The drafter comes first, then the intermediate model.
            if missing == "draft" or n_opened % 3 == 2:
                raise OSError("no memory")
            return open_it()

        opening(fails)
        scarce = False
        for _ in range(4):
            model.check_memory()
        assert n_opened > 0
        assert (model.degradations, model.drafter_name) == (degradations, drafter)
        assert {(line.owner, line.name) for line in model.ledger} == held
        model.ledger.check_integrity()


@pytest.mark.long
def test_where_drafts_make_a_difference_from_now_on_that_is_told_and_so_is_their_return(
    load: Callable[..., TextModel], opening: Callable[[Change], None]
) -> None:
    scarce = True

    def decide() -> int:
        return PLENTY if not scarce else SCARCE if len(model.degradations) < 3 else 150

    with load(decide, engine="llama") as model:

        def rounds(target: Any) -> None:
            target.capabilities = replace(target.capabilities, widths=())

        opening(changed(rounds))
        reply = model.generate(ASKED[0], seed=1, max_tokens=20, ignore_eos=True)
        reply.read()
        (notice,) = reply.notices
        assert "identity rounding" in notice and reply.identity == "rounding"
        scarce, degradations = False, model.degradations
        for _ in range(6):
            model.check_memory()
        assert model.degradations == degradations
        reply = model.generate(ASKED[0], seed=1, max_tokens=20, ignore_eos=True)
        reply.read()
        assert model.degradations == degradations[2:]
        back = ", ".join(each.replace("dropped", "back") for each in degradations[:2])
        (told,) = [notice for notice in reply.notices if "memory is free again" in notice]
        assert told.startswith(f"memory is free again: {back}; from here on, words may differ from those without")
