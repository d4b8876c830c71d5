"""The decoding loop: a target and its drafter, writing one text together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any, NamedTuple

from edge_spec.errors import SettingsError, StateError
from edge_spec.sampling import Sampler
from edge_spec.speculation.drafters.base import Drafter
from edge_spec.speculation.follower import Follower, decode_all
from edge_spec.speculation.guide import guided, learn_forced
from edge_spec.speculation.language_model import Logits
from edge_spec.speculation.pool import Path
from edge_spec.speculation.round import Round, Stopwatch
from edge_spec.speculation.text import Text
from edge_spec.speculation.tree import EMPTY, Tree
from edge_spec.speculation.walk import Pick, walk

__all__ = ["Prepared", "Slot", "decode", "learn", "prepare"]


class Prepared(NamedTuple):
    """A round whose decode comes next.

    Attributes:
        tree: what the target decodes: the uncommitted tokens, and the draft below the last of them.
        draft: what was drafted.
        watch: times the round.
    """

    tree: Tree
    draft: Tree
    watch: Stopwatch


class Slot:
    """A text in the cells of the target, with its drafter. Replies of one conversation follow each other in one slot.

    Attributes:
        drafter: guesses what the target will write.
    """

    def __init__(self, model: Path, drafter: Drafter) -> None:
        self.drafter = drafter
        self._target = Follower(model)
        self._undone_on_error = _UndoneOnError(self._target)
        self._sampler: Sampler | None = None
        self._pick: Pick = _not_begun
        # Of a reply that a grammar guides: it guides its drafts as well.
        self._guide: Sampler | None = None

    @property
    def model(self) -> Path:
        """The text's path through the pool of the target."""
        return self._target.model

    @property
    def text(self) -> list[int]:
        """Token ids of the prompt and all accepted tokens."""
        return self._target.text.tokens

    @property
    def room(self) -> int | None:
        """The tokens by which the text may still grow, if that is known: drafters weigh what pays by then."""
        return self._target.text.room

    @room.setter
    def room(self, n_tokens: int | None) -> None:
        self._target.text.room = n_tokens

    @property
    def followed(self) -> dict[str, Follower]:
        """All models and the texts that they follow: ``target``, and those of the drafter by their names."""
        return {"target": self._target, **self.drafter.followed}

    def begin(self, prompt: Sequence[int], sampler: Sampler, *, reuse: bool, pick: Pick | None = None) -> None:
        """Start a new text; ``read`` comes next. With ``reuse`` the caches keep what they share with it.

        A reused cache was computed in other widths than a fresh one: reuse only what ``Capabilities.reuse_step`` allows
        where the text must be that of a fresh cache.

        Args:
            pick: picks tokens instead of ``sampler.pick``, and picks the same ones.
        """
        if reuse:
            self._target.settle()
        self._target.follow(Text(prompt), reuse=reuse)
        self._sampler = sampler
        self._pick = pick or sampler.pick
        self._begin_drafter(sampler)

    def _begin_drafter(self, sampler: Sampler) -> None:
        view = sampler.view()
        self._guide = view if sampler.has_grammar and self.drafter.takes_guidance else None
        self.drafter.begin(self._target.text, view)

    def read(self, most: int | None = None) -> bool:
        """Read what the models have not read of the text, or ``most`` tokens each; return whether all is read."""
        return all([self._target.read(most), self.drafter.read(most)])

    def unread(self, most: int) -> Sequence[int]:
        """Return the next tokens that the target has to read before it can write, at most ``most``."""
        return self._target.unread(most)

    @property
    def n_unread(self) -> int:
        """How many tokens of the text its models have not read, together."""
        return self._target.n_unread + self.drafter.n_unread()

    def finish(self, prepared: Prepared, rows: Logits, ends: Callable[[int], bool]) -> Round:
        """Walk and keep, once the tree of ``prepare`` is decoded; ``learn`` comes next.

        Args:
            rows: logits of the tree's nodes.
            ends: called with every picked token; says whether the text ends with it.
        """
        target, draft, tree = self._target, prepared.draft, prepared.tree
        # Other texts of the same decode may have been finished meanwhile.
        prepared.watch.restart()
        with self._undone_on_error:
            path, picked = walk(tree, len(tree) - len(draft) - 1, rows, self._pick, self.text, ends)
            target.keep(path)
            if self._guide is not None:
                learn_forced(self._guide, self.text, len(picked))
            return Round.of(draft, tree, path, picked, prepared.watch)

    def _most(self, limit: int, n_rows: int) -> int:
        """Return the most tokens to draft.

        With the bonus token they fit the context as well, so that drafts do not change where a context is full.
        """
        return min(limit, n_rows, self.model.n_ctx - len(self._target.text) - 1)

    def _verifiable(self, draft: Tree, most: int) -> Tree:
        """Return what the target can verify of a draft, and the grammar does not rule out.

        Raises:
            SettingsError: what the drafter has returned is no tree.
        """
        if not isinstance(draft, Tree):
            what = f"the drafter {self.drafter.name!r} has drafted a {type(draft).__name__} in place of a Tree"
            raise SettingsError(what, hint="Tree.sequence(tokens) makes one of tokens that follow one another")
        if draft:
            draft = draft.fitted(most, self.model.n_vocab, branches=self.model.capabilities.takes_trees)
        return guided(draft, self._guide, self.text, most) if self._guide is not None else draft

    def replace(self, length: int, tokens: Sequence[int]) -> None:
        """Make the text its first ``length`` tokens followed by ``tokens``."""
        self._target.rollback(length)
        self.text.extend(tokens)

    def hold(self) -> None:
        """Make the text, as far as the target has to read it now, a place to which it can go back."""
        self._target.uncommitted(self.model.capabilities.max_rows)
        self.model.hold()

    def end_reply(self) -> None:
        """Drop what the target has decoded beyond the text of a reply that has ended: the next one has the room."""
        self._target.rollback(len(self.text))

    def settle(self) -> None:
        """Commit what the last rounds have left uncommitted, see ``Follower.settle``."""
        self._target.settle()

    def cut(self, first: int, last: int) -> None:
        """Take the tokens from ``first`` up to ``last`` out of the text, to make room in the context.

        The sampler of a reply that is being written has to ``forget`` them.
        """
        self._target.cut(first, last)
        self._target.read()

    def draft_with(self, drafter: Drafter) -> None:
        """Continue with another drafter. The one before is not closed."""
        self.drafter = drafter
        if self._sampler is not None:
            self._begin_drafter(self._sampler)

    def change_target(self, model: Path) -> None:
        """Continue the text with another target. The next round first reads what its cache lacks.

        The old target is not closed.
        """
        self._target.change_model(model)

    def save(self, *, target: bool = True, drafters: bool = True) -> dict[str, bytes]:
        """Return the caches of the target and of the drafter's models, by name. They belong to ``text``.

        Raises:
            Cancelled, Closed: as ``Pool.decode``.
        """
        states: dict[str, bytes] = {}
        if target:
            self.settle()
            states["target"] = self._target.save()
        return states | (self.drafter.save() if drafters else {})

    def restore(self, states: Mapping[str, bytes], text: Sequence[int]) -> None:
        """Restore what ``save`` returned while the text was ``text``; ``begin`` comes next.

        Raises:
            StateError: the target's state is missing, damaged or of another model; text and cache are empty then.
        """
        self.forget()
        if "target" not in states:
            self.drafter.restore({}, ())
            raise StateError("the saved state is incomplete", hint="read the text again instead")
        self._target.restore(states["target"], text)
        self.drafter.restore(states, text)

    def holds(self, tokens: Sequence[int]) -> None:
        """The text, empty so far, is ``tokens``, and the target's cells hold their beginning; ``begin`` comes next."""
        self._target.holds(tokens)

    def forget(self) -> None:
        """Empty the text and the target's cache."""
        self._target.forget()


def prepare(slots: Sequence[Slot], limits: Sequence[int]) -> list[Prepared]:
    """Draft for texts that share a decode; ``decode`` comes next, then ``finish`` for each and ``learn``.

    Args:
        limits: the most tokens to draft for each; 0 for plain decoding.
    """
    watch, max_rows = Stopwatch(), slots[0].model.capabilities.max_rows
    if len(slots) == 1:
        slot = slots[0]
        tokens = slot._target.uncommitted(max_rows)
        most = slot._most(limits[0], max_rows - len(tokens))
        draft = slot._verifiable(slot.drafter.draft(most), most) if most > 0 else EMPTY
        watch.lap()
        return [Prepared(draft.under(tokens), draft, watch)]
    begins = [slot._target.uncommitted(max_rows // len(slots)) for slot in slots]
    n_rows = max_rows - sum(map(len, begins))
    drafts = _drafts(slots, [slot._most(limit, n_rows) for slot, limit in zip(slots, limits, strict=True)], n_rows)
    watch.lap()
    return [
        Prepared(draft.under(tokens), draft, Stopwatch([watch.laps[0] / len(slots)]))
        for draft, tokens in zip(drafts, begins, strict=True)
    ]


def _drafts(slots: Sequence[Slot], limits: Sequence[int], n_rows: int) -> list[Tree]:
    """Return drafts of several texts, which fit in so many rows together."""
    drafters = [slot.drafter for slot in slots]
    # Models that know fewer texts at a time would have to read each of them again in every round.
    if len(slots) <= drafters[0].most_texts:
        drafts = [*drafters[0].draft_all(drafters, limits, n_rows)]
    else:
        drafts = [EMPTY] * len(slots)
    n_rows -= sum(map(len, drafts))
    for n, draft in enumerate(drafts):
        # What a grammar forces comes beyond what was drafted.
        most = min(limits[n], n_rows + len(draft))
        drafts[n] = slots[n]._verifiable(draft, most) if most > 0 else EMPTY
        n_rows += len(draft) - len(drafts[n])
    return drafts


def decode(slots: Sequence[Slot], prepared: Sequence[Prepared]) -> list[Logits]:
    """Decode what ``prepare`` has returned; returns rows for each text.

    Raises:
        PoolFull, Cancelled, BackendError: as ``Pool.decode``; no text has changed.
    """
    begun = perf_counter()
    rows = decode_all([slot._target for slot in slots], [each.tree for each in prepared])
    a_row_s = (perf_counter() - begun) / sum(map(len, rows))
    for each, own in zip(prepared, rows, strict=True):
        each.watch.count(len(own) * a_row_s)
    return rows


def learn(slots: Sequence[Slot], rounds: Sequence[Round]) -> list[Exception | None]:
    """Let the drafters of texts that shared a decode learn from the round of each; returns for each what has failed."""
    drafters = [slot.drafter for slot in slots]
    return [*drafters[0].learn_all(drafters, rounds)]


def _not_begun(row: Any, text: Sequence[int]) -> int:
    raise AssertionError("begin() comes first")


class _UndoneOnError:
    """If the block fails, the text is what it was before, and the model holds no more than that."""

    __slots__ = ("_follower", "_length")

    def __init__(self, follower: Follower) -> None:
        self._follower = follower
        self._length = 0

    def __enter__(self) -> None:
        self._length = len(self._follower.text)

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is not None:
            self._follower.rollback(self._length)
