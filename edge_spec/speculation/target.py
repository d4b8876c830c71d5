"""A target, the texts that lie in its cells, and what drafts for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from edge_spec.speculation.drafters.base import Drafter
from edge_spec.speculation.drafters.plain import NoDrafter
from edge_spec.speculation.language_model import LanguageModel
from edge_spec.speculation.loop import Speculator
from edge_spec.speculation.pool import Path, Pool, pool_of

__all__ = ["Target", "path_of"]


class Target:
    """A target and its texts.

    An engine whose cells are a pool holds any number of texts, each a path through it, and one decode can advance
    several of them. Any other engine holds one text.

    Each text has a drafter. Where further texts have none with models, since these know one text each, the first one
    sits with the text that is written.

    Args:
        seat: the first text, with the drafter. Where there is a pool, its model is the path that is there since the
            target was opened.
        drafter_beside: makes a drafter for a further text, by its path.

    Attributes:
        model: the target.
        pool: its cells; None where the engine has those of one text.
        texts: the texts, whether somebody writes them or not.
        seat: the text that is written alone, or was.
        draft_pools: the cells of the drafters' models.
    """

    def __init__(self, seat: Speculator, drafter_beside: Callable[[Path], Drafter] = lambda path: NoDrafter()) -> None:
        self._drafter_beside = drafter_beside
        self.model, self.pool = seat.model, pool_of(seat.model)
        self.seat = seat
        self.texts = [seat]
        self.draft_pools = _pools_of(seat.drafter)

    @property
    def drafter(self) -> Drafter:
        """Guesses what the target will write in the text of ``seat``."""
        return self.seat.drafter

    @property
    def text_bytes(self) -> int:
        """What a text takes besides cells, in the target and in the drafters' models, see ``Pool.text_bytes``."""
        pools = [self.pool, *self.draft_pools] if self.pool is not None else []
        return sum(pool.text_bytes for pool in pools if pool is not None)

    @property
    def most_texts(self) -> int:
        """How many texts one decode can advance; 1 where rows of several would not be those of a single text."""
        capabilities = self.model.capabilities
        return capabilities.max_rows if self.pool is not None and capabilities.widths else 1

    def add(self) -> Speculator | None:
        """Return a further text, empty and without a drafter; None where the engine holds no more."""
        if self.pool is None or len(self.texts) >= self.pool.max_paths:
            return None
        return self._added(self.pool.path())

    def fork(self, source: Speculator, n: int) -> Speculator | None:
        """Return a further text that begins with the first ``n`` tokens of another one, and shares their cells."""
        if self.pool is None:
            return None
        path = path_of(source)
        forked = self._added(path.fork(min(n, path.n_past)))
        forked.holds(source.text[:n])
        return forked

    def may_drop(self, text: Speculator) -> bool:
        """Return whether there may be one text less: the first one goes with the model, and one has the drafter."""
        return text is not self.texts[0] and text is not self.seat

    def drop(self, text: Speculator) -> None:
        """Close a further text, see ``may_drop``."""
        self.texts.remove(text)
        text.drafter.close()
        path_of(text).close()

    def _added(self, path: Path) -> Speculator:
        text = Speculator(path, self._drafter_beside(path))
        self.texts.append(text)
        return text

    def drafts_for(self, text: Speculator) -> bool:
        """Return whether a text has all that drafts, without that of ``seat``."""
        return text is self.seat or text.drafter.followed.keys() == self.drafter.followed.keys()

    def sit_at(self, text: Speculator, *, is_begun: bool) -> None:
        """Let the drafter draft for another text, which has none of its own, see ``drafts_for``.

        Args:
            is_begun: it is being written; if not, ``Speculator.begin`` comes next.
        """
        former, drafter = self.seat, self.drafter
        self.seat = text
        former.draft_with(text.drafter)
        if is_begun:
            text.draft_with(drafter)
        else:
            text.drafter = drafter

    def read(self, pieces: Sequence[tuple[Speculator, Sequence[int]]]) -> None:
        """Commit the next tokens of several texts, see ``Speculator.unread``."""
        if len(pieces) == 1:
            pieces[0][0].model.prefill(pieces[0][1])
        elif pieces:
            assert self.pool is not None
            self.pool.prefill([(path_of(text), tokens) for text, tokens in pieces])

    def change_drafter(
        self, drafter: Drafter | None, drafter_beside: Callable[[Path], Drafter] = lambda path: NoDrafter()
    ) -> None:
        """Close all drafters and continue with others, or with none.

        Args:
            drafter_beside: makes a drafter for each of the other texts.
        """
        self._close_drafters()
        self._drafter_beside = drafter_beside
        self.draft_pools = _pools_of(drafter) if drafter is not None else []
        for text in self.texts:
            text.draft_with(drafter or NoDrafter() if text is self.texts[0] else drafter_beside(path_of(text)))

    @property
    def held_bytes(self) -> int:
        """Memory that tables of the drafters take."""
        return sum(text.drafter.held_bytes for text in self.texts)

    def change_model(self, model: LanguageModel) -> None:
        """Continue all texts with another target. What their cells lack is read when they are written on.

        The old target is not closed.
        """
        self.model, self.pool = model, pool_of(model)
        for text in self.texts:
            text.change_target(model if text is self.texts[0] or self.pool is None else self.pool.path())

    def forget(self) -> None:
        """Empty all texts and their cells."""
        for text in self.texts:
            text.forget()

    def cancel(self) -> None:
        """Make what the target or the drafter computes, in another thread, raise ``Cancelled``."""
        for followed in self.seat.followed.values():
            followed.model.cancel()

    def resume(self) -> None:
        """Forget a ``cancel`` that nothing has answered yet."""
        for followed in self.seat.followed.values():
            followed.model.resume()

    def close(self) -> None:
        """Free the target and the drafters."""
        self._close_drafters()
        self.model.close()

    def _close_drafters(self) -> None:
        for text in self.texts:
            text.drafter.close()


def _pools_of(drafter: Drafter) -> list[Pool]:
    """Return the pools of a drafter's models, as far as they have one."""
    pools = {id(pool): pool for each in drafter.followed.values() if (pool := pool_of(each.model)) is not None}
    return list(pools.values())


def path_of(text: Speculator) -> Path:
    """Return the path of a text through the pool of its target."""
    # Where there is a pool, all models of texts are paths through it.
    return cast(Path, text.model)
