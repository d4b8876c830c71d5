"""The loop's heart: a model and its drafter, following one text together.

There is one verification rule, for sequences, trees, tables, models and hierarchies: walk down from the end of
the text; at each node let the model pick; descend if a child holds that token, else stop. What is picked is
what the model would have picked alone, so a drafter can only change when a token arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter

from edge_spec.errors import StateError
from edge_spec.sampling import Sampler
from edge_spec.speculation.drafters.base import Drafter, SavingDrafter
from edge_spec.speculation.drafters.grammar_guided import guided, learn_cuts
from edge_spec.speculation.drafters.plain import NoDrafter
from edge_spec.speculation.language_model import LanguageModel, Logits
from edge_spec.speculation.tree import EMPTY, Tree

__all__ = ["Round", "Speculator", "catch_up", "common_prefix", "walk"]


@dataclass(frozen=True, slots=True)
class Round:
    """What one step did.

    Attributes:
        tokens: the tokens written; the last one is the bonus (or corrected) token, the others were drafted. If
            the text ends, the last one may have been drafted as well.
        accepted: how many of them were drafted.
        drafted: number of drafted nodes at each depth; what lies below the end of the text does not count.
        n_rows: rows that the model computed for it, without padding.
        draft_s, verify_s, sample_s: seconds spent drafting, in the model, and walking and keeping books.
    """

    tokens: tuple[int, ...]
    accepted: int
    drafted: tuple[int, ...]
    n_rows: int
    draft_s: float
    verify_s: float
    sample_s: float


def walk(
    tree: Tree, root: int, rows: Logits, sampler: Sampler, text: list[int], ends: Callable[[int], bool]
) -> list[int]:
    """Let the model pick its way down a tree; ``text`` grows by what it picks.

    Args:
        tree: its nodes down to ``root`` are the end of the text, those below it drafts.
        rows: one row of logits per node, ``[n, n_vocab]``.
        ends: told every token as it is picked; says whether the text ends with it.

    Returns:
        The nodes that are part of the text now, from the top.
    """
    path = list(range(root + 1))
    node: int | None = root
    while node is not None:
        token = sampler.pick(rows[node], text)
        text.append(token)
        if ends(token):
            break
        node = tree.child(node, token)
        if node is not None:
            path.append(node)
    return path


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two texts have in common from the start."""
    n = 0
    for left, right in zip(a, b, strict=False):
        if left != right:
            break
        n += 1
    return n


def catch_up(model: LanguageModel, text: Sequence[int], room: int) -> Sequence[int]:
    """The end of ``text`` that the next decode has to begin with, never empty.

    Of what the model has not committed yet, all but the last token is prefilled unless it takes at most
    ``room`` rows of the next decode.
    """
    if model.n_past >= len(text):
        # Rolled back, or drafted what came: the row after the last token has to be computed all the same.
        model.rollback(len(text) - 1)
    behind = text[model.n_past :]
    if len(behind) > max(room, 1):
        model.prefill(behind[:-1])
        behind = behind[-1:]
    return behind


class Speculator:
    """A model and its drafter, following one text together.

    ``text`` is the prompt and all accepted tokens. The model has committed all of it but the last token, or
    fewer (see ``LanguageModel.keep``); the next decode begins with whatever is missing.
    """

    def __init__(
        self,
        model: LanguageModel,
        drafter: Drafter,
        *,
        helpers: Callable[[], Sequence[LanguageModel]] = lambda: (),
    ) -> None:
        """``helpers`` gives the drafter's models, for ``cancel`` to reach them too."""
        self.model = model
        self.drafter = drafter
        self._helpers = helpers
        self.text: list[int] = []
        self._sampler: Sampler | None = None
        # Without a drafter nothing is drafted, even if a grammar knows what comes: this is plain decoding.
        self._drafts = not isinstance(drafter, NoDrafter)

    def begin(self, prompt: Sequence[int], sampler: Sampler, *, reuse: bool) -> None:
        """Start on a new text. With ``reuse`` the model keeps what its cache shares with it.

        A reused cache was computed in other widths than a fresh one, so whoever promises the same text for the
        same prompt does not reuse.
        """
        shared = 0
        if reuse:
            self.settle()
            shared = common_prefix(self.text[: self.model.n_past], prompt[:-1])
        if shared < self.model.n_past and not self.model.capabilities.can_rollback:
            shared = 0
        self.model.rollback(shared)
        self.text = list(prompt)
        self._sampler = sampler
        self.drafter.begin(prompt, sampler.view())
        # A drafter's model may have less room than its target; it then has nothing to say.
        if len(self.text) <= self.model.n_ctx:
            self.model.prefill(self.text[shared:-1])

    def step(self, limit: int, ends: Callable[[int], bool]) -> Round:
        """Draft at most ``limit`` tokens, decode, walk, keep, learn."""
        assert self._sampler is not None, "begin() comes first"
        started = perf_counter()
        # What a side branch left behind is decoded with the next draft, in the class of widths that a prefill
        # of these few tokens need not be in.
        behind = catch_up(self.model, self.text, self.model.capabilities.max_rows)
        # Together with the bonus token no more than the context holds, so that drafts do not move where it is full.
        limit = min(limit, self.model.capabilities.max_rows - len(behind), self.model.n_ctx - len(self.text) - 1)
        draft = self._draft(limit) if limit > 0 else EMPTY
        tree = draft.under(behind)
        drafted = perf_counter()
        rows = self.model.decode(tree)
        decoded = perf_counter()
        length = len(self.text)
        try:
            path = walk(tree, len(behind) - 1, rows, self._sampler, self.text, ends)
            self.model.keep(path)
            tokens = tuple(self.text[length:])
            if self._sampler.has_grammar and self._drafts:
                learn_cuts(self._sampler, self.text[:length], tokens)
            self.drafter.accept(tokens)
        except BaseException:
            del self.text[length:]
            self.model.rollback(min(self.model.n_past, length - 1))
            raise
        # Where the text ends on a drafted token, the walk stops one node early.
        ended = tree.child(path[-1], tokens[-1]) is not None
        return Round(
            tokens=tokens,
            accepted=len(tokens) - (not ended),
            drafted=_by_depth(draft)[: len(tokens)] if ended else _by_depth(draft),
            n_rows=len(tree),
            draft_s=drafted - started,
            verify_s=decoded - drafted,
            sample_s=perf_counter() - decoded,
        )

    def _draft(self, limit: int) -> Tree:
        """At most ``limit`` guesses; forced ones count, since whoever set the limit knows what rows cost."""
        draft = _sound(self.drafter.draft(limit), limit, self.model)
        sampler = self._sampler
        if sampler is None or not sampler.has_grammar or not self._drafts:
            return draft
        return guided(draft, sampler, self.text, limit)

    def replace(self, length: int, tokens: Sequence[int]) -> None:
        """Make the text its first ``length`` tokens and then ``tokens``."""
        self.model.rollback(min(self.model.n_past, length))
        self.drafter.rollback(length)
        self.drafter.accept(tokens)
        self.text[length:] = tokens

    def rest(self) -> None:
        """The turn has ended: whatever was guessed beyond the text leaves all caches.

        The next turn finds the room, and what is saved meanwhile is text.
        """
        self.model.rollback(min(self.model.n_past, len(self.text)))
        self.drafter.rollback(len(self.text))

    def settle(self) -> None:
        """Let the model commit all of the text but its last token, in the class of widths of its replies.

        After a side branch it may lie further behind. Whoever goes on from here finds the very cache that plain
        decoding would have left. What lies behind further than that has yet to be read, and is left to a prefill.
        """
        behind = self.text[self.model.n_past : -1]
        if behind and len(behind) <= self.model.capabilities.max_rows and len(self.text) <= self.model.n_ctx:
            self.model.decode(Tree.sequence(behind))
            self.model.keep(range(len(behind)))

    def cut(self, first: int, last: int) -> None:
        """Take the tokens from ``first`` up to ``last`` out of the text, for want of room in the context.

        A model that can shift goes on with what it computed from them, any other reads again what comes after.
        """
        try:
            self.settle()
            if self.model.capabilities.can_shift and last <= self.model.n_past:
                self.model.shift(first, last)
            else:
                self.model.rollback(min(first, self.model.n_past))
        except BaseException:
            # Text and cache may no longer say the same.
            self.forget()
            raise
        del self.text[first:last]
        if self._sampler is not None:
            self._sampler.forget(last - first)
            self.drafter.begin(self.text, self._sampler.view())
        self.model.prefill(self.text[self.model.n_past : -1])

    def change_drafter(self, drafter: Drafter | None) -> None:
        """Close the drafter and go on with another one; with None plainly, until there is one."""
        self.drafter.close()
        self.drafter = drafter or NoDrafter()
        self._drafts = drafter is not None
        if self._sampler is not None:
            self.drafter.begin(self.text, self._sampler.view())

    def save(self) -> dict[str, bytes]:
        """What target and drafter have in their caches, by model; to be saved together with ``text``."""
        self.settle()
        states = self.drafter.save() if isinstance(self.drafter, SavingDrafter) else {}
        return {"target": self.model.save(), **states}

    def restore(self, states: Mapping[str, bytes], text: Sequence[int]) -> None:
        """Bring back what ``save`` returned while the text was ``text``; ``begin`` comes next.

        Raises:
            StateError: the target's state is damaged or of another model; there is no text then.
        """
        self.forget()
        if "target" not in states:
            raise StateError("the saved state is incomplete", hint="read the text again instead")
        self.model.restore(states["target"])
        self.text = list(text)
        if isinstance(self.drafter, SavingDrafter):
            # A drafter that lacks its state reads the text again, and nothing else changes.
            with suppress(StateError):
                self.drafter.restore({name: state for name, state in states.items() if name != "target"}, text)

    def forget(self) -> None:
        """Empty the model's cache."""
        self.text = []
        self.model.rollback(0)

    def cancel(self) -> None:
        """Make what the models compute, in another thread, raise ``Cancelled``."""
        for model in (self.model, *self._helpers()):
            model.cancel()

    def resume(self) -> None:
        """Forget a ``cancel`` that nothing has answered yet."""
        for model in (self.model, *self._helpers()):
            model.resume()

    def close(self) -> None:
        """Free the model and the drafter."""
        self.drafter.close()
        self.model.close()


def _sound(draft: Tree, limit: int, model: LanguageModel) -> Tree:
    """What of a draft can be verified: drafters may be as bad as they like, and that includes strangers'."""
    n_vocab, takes_trees = model.n_vocab, model.capabilities.takes_trees
    if len(draft) <= limit and (draft.is_sequence or takes_trees) and all(0 <= x < n_vocab for x in draft.tokens):
        return draft
    places = {-1: -1}
    tokens: list[int] = []
    parents: list[int] = []
    for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
        fits = takes_trees or places.get(parent) == len(tokens) - 1
        if parent in places and fits and 0 <= token < n_vocab and len(tokens) < limit:
            places[node] = len(tokens)
            tokens.append(token)
            parents.append(places[parent])
    return Tree(tuple(tokens), tuple(parents))


def _by_depth(draft: Tree) -> tuple[int, ...]:
    if draft.is_sequence:
        return (1,) * len(draft)
    counts = [0] * (max(draft.depths) + 1)
    for depth in draft.depths:
        counts[depth] += 1
    return tuple(counts)
