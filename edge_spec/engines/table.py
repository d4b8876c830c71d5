"""A language model whose distributions are in a table: for tests, and for people who embed the package."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from edge_spec.engines.cache_state import check_path, n_new_nodes
from edge_spec.engines.places import Places
from edge_spec.errors import Cancelled, Closed, ContextFull, StateError
from edge_spec.speculation.language_model import ANYWHERE, Capabilities, Logits, NumericsProfile
from edge_spec.speculation.tree import EMPTY, Tree
from edge_spec.tokens.kept_tokens import KeptTokens

__all__ = ["TableModel", "TableTexts", "random_table"]

_STATE = struct.Struct("<8sQ16s")
_MAGIC = b"edgetab1"


def random_table(
    n_vocab: int, *, order: int = 2, seed: int = 0, scale: float = 2.0, like: npt.ArrayLike | None = None
) -> npt.NDArray[np.float32]:
    """Normal logits of standard deviation ``scale`` for every context, ``[n_vocab] * (order + 1)``.

    With ``like``, another table, the normal logits are added to it: the table of a drafter for a target with the other.
    """
    table = np.random.default_rng(seed).standard_normal((n_vocab,) * (order + 1)) * scale
    if like is not None:
        table += np.asarray(like)
    return table.astype(np.float32)


class TableModel:
    """A Markov model: the logits of the next token are in a table under the last ``order`` tokens.

    While the text is shorter than ``order`` tokens, token 0 stands in for the missing ones. It works the way a real
    cache does: it remembers what is committed and what is pending, and computes from nothing else.

    Args:
        table: logits, ``[n_vocab] * (order + 1)``, float32.
        n_ctx: the most tokens that can be committed.
        takes_trees, widths, max_rows, can_shift: see ``Capabilities``.
        n_snapshots: before how many rows of a decode it knows the text, like a recurrent model; beyond these it goes
            back to what it held, or to nothing. Any number of tokens if None.
        rollback: see ``Capabilities``; ``n_snapshots`` if None. A drafter need not keep snapshots.
        keeps_branches: whether ``keep`` commits a side branch, or like llama.cpp only nodes that lie in order.
        distort: stands for a kernel that rounds: given a row and the number of rows it was computed with.
    """

    def __init__(
        self,
        table: npt.NDArray[np.float32],
        *,
        n_ctx: int = 1 << 20,
        takes_trees: bool = True,
        widths: tuple[int, ...] = tuple(range(1, 65)),
        max_rows: int = 64,
        can_shift: bool = True,
        n_snapshots: int | None = None,
        rollback: int | None = None,
        keeps_branches: bool = True,
        distort: Callable[[Logits, int], Logits] | None = None,
    ) -> None:
        if len(set(table.shape)) != 1 or table.ndim < 1:
            raise ValueError(f"a table of shape {table.shape}; all axes must be the vocabulary")
        self._table = np.asarray(table, dtype=np.float32)
        self._order = table.ndim - 1
        self._n_ctx = n_ctx
        self._keeps_branches = keeps_branches
        self._distort = distort
        self._places = Places(n_snapshots) if n_snapshots is not None else None
        rollback = rollback if rollback is not None else ANYWHERE if n_snapshots is None else n_snapshots
        self._capabilities = Capabilities(
            rollback=rollback,
            takes_trees=takes_trees,
            widths=widths,
            max_rows=min(max_rows, rollback + 1),
            can_shift=can_shift,
        )
        self._cells: list[int] = []
        self._pending: Tree = EMPTY
        self._cancelled = False
        self._closed = False

    @property
    def n_vocab(self) -> int:
        return int(self._table.shape[0])

    @property
    def kept(self) -> KeptTokens | None:
        return None

    @property
    def n_ctx(self) -> int:
        return self._n_ctx

    @property
    def n_past(self) -> int:
        return len(self._cells)

    @property
    def cells(self) -> tuple[int, ...]:
        """The committed tokens."""
        return tuple(self._cells)

    @property
    def pending(self) -> Tree:
        """What has been decoded and neither kept nor rolled back."""
        return self._pending

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def profile(self) -> NumericsProfile:
        digest = blake2b(self._table.tobytes(), digest_size=8).hexdigest()
        return NumericsProfile(engine="table", facts=(("table", digest), ("n_ctx", str(self._n_ctx))))

    def prefill(self, tokens: Sequence[int]) -> None:
        self._enter(len(tokens), room=self._n_ctx)
        self._forget_pending()
        self._cells.extend(tokens)
        self._computed(len(tokens))

    def decode(self, tree: Tree) -> Logits:
        self._enter(len(tree), room=self._n_ctx + self._capabilities.max_rows)
        first = len(self._pending)
        n = n_new_nodes(tree, self._pending, max_rows=self._capabilities.max_rows)
        if not tree.is_sequence and not self._capabilities.takes_trees:
            raise ValueError("this model takes sequences, not trees")
        rows = np.empty((n, self.n_vocab), dtype=np.float32)
        for place, node in enumerate(range(first, len(tree))):
            path = [tree.tokens[above] for above in tree.path_to(node)]
            row = self._row([*self._cells[max(0, len(self._cells) - self._order) :], *path])
            rows[place] = self._distort(row, self._capabilities.padded(n)) if self._distort else row
        self._pending = tree
        self._computed(self._capabilities.padded(n), n_padding=self._capabilities.padded(n) - n)
        return rows

    def _computed(self, n_rows: int, *, n_padding: int = 0) -> None:
        if self._places is not None and n_rows:
            self._places.computed(len(self._cells) + len(self._pending) + n_padding, n_rows)

    def _row(self, context: list[int]) -> Logits:
        wanted = [0] * (self._order - len(context)) + context[len(context) - self._order :] if self._order else []
        return self._table[tuple(wanted)]  # type: ignore[no-any-return]

    def keep(self, path: Sequence[int]) -> None:
        check_path(path, self._pending)
        if not self._keeps_branches:
            path = [node for place, node in enumerate(path) if list(path[: place + 1]) == list(range(place + 1))]
        self._cells.extend(self._pending.tokens[node] for node in path)
        self._pending = EMPTY
        self._go_back(len(self._cells))

    def rollback(self, n_past: int) -> None:
        if not 0 <= n_past <= len(self._cells):
            raise ValueError(f"rollback to {n_past} of {len(self._cells)} tokens")
        self._pending = EMPTY
        self._go_back(n_past)

    def _go_back(self, n: int) -> None:
        del self._cells[n if self._places is None else self._places.nearest(n) :]

    def _forget_pending(self) -> None:
        if self._pending:
            self.rollback(len(self._cells))

    def hold(self) -> None:
        self._forget_pending()
        if self._places is not None:
            self._places.copies = {len(self._cells): None}

    def shift(self, first: int, last: int) -> None:
        self._enter(0, room=self._n_ctx)
        self._forget_pending()
        del self._cells[first:last]

    def save(self) -> bytes:
        self._forget_pending()
        body = np.asarray(self._cells, dtype="<i4").tobytes()
        return _STATE.pack(_MAGIC, len(self._cells), self._seal(body)) + body

    def restore(self, state: bytes) -> None:
        self.rollback(0)
        body = state[_STATE.size :]
        if state[: _STATE.size] != _STATE.pack(_MAGIC, len(body) // 4, self._seal(body)):
            raise StateError("the saved state is damaged or of another model", hint="read the text again instead")
        self.prefill(np.frombuffer(body, dtype="<i4").tolist())

    def _seal(self, body: bytes) -> bytes:
        return blake2b(body, digest_size=16, person=self.profile.name.encode()).digest()

    @property
    def most_texts(self) -> int:
        return self._capabilities.max_rows if self._capabilities.widths else 1

    def texts_bytes(self, n_slots: int, n_tokens: int) -> int:
        return n_slots * n_tokens

    def texts(self, n_slots: int, n_tokens: int, *, hidden: bool = False) -> TableTexts:
        return TableTexts(self, n_slots, n_tokens)

    def row_after(self, text: Sequence[int]) -> Logits:
        """Return the logits of what follows a text."""
        return self._row(list(text[max(0, len(text) - self._order) :]))

    def enter(self) -> None:
        """Refuse to compute if it is closed, or was cancelled."""
        self._enter(0, room=self._n_ctx)

    def cancel(self) -> None:
        self._cancelled = True

    def resume(self) -> None:
        self._cancelled = False

    def close(self) -> None:
        self._closed = True

    def _enter(self, n: int, *, room: int) -> None:
        if self._closed:
            raise Closed("the table model")
        if self._cancelled:
            self._cancelled = False
            self._forget_pending()
            raise Cancelled
        if len(self._cells) + n > room:
            raise ContextFull(n_past=len(self._cells), n_new=n, n_ctx=self._n_ctx)


class TableTexts:
    """Several texts of a table model; see ``Texts``.

    Attributes:
        slots: the committed tokens of each text.
    """

    def __init__(self, model: TableModel, n_slots: int, n_tokens: int) -> None:
        self.slots: list[list[int]] = [[] for _ in range(n_slots)]
        self._model = model
        self._n_tokens = n_tokens

    @property
    def n_slots(self) -> int:
        return len(self.slots)

    def read(self, slot: int, tokens: Sequence[int]) -> None:
        self._enter(slot, len(tokens))
        self.slots[slot].extend(tokens)

    def copy(self, source: int, slot: int, n: int) -> None:
        self.slots[slot] = self.slots[source][:n]

    def rollback(self, slot: int, n: int) -> None:
        del self.slots[slot][n:]

    def decode(self, tokens: Mapping[int, int]) -> Logits:
        for slot in tokens:
            self._enter(slot, 1)
        for slot, token in tokens.items():
            self.slots[slot].append(token)
        return np.array([self._model.row_after(self.slots[slot]) for slot in tokens])

    def hidden_rows(self, slot: int) -> npt.NDArray[np.float16]:
        raise ValueError("a table has no hidden states")

    def close(self) -> None:
        """Nothing to free."""

    def _enter(self, slot: int, n: int) -> None:
        self._model.enter()
        if len(self.slots[slot]) + n > self._n_tokens:
            raise ContextFull(n_past=len(self.slots[slot]), n_new=n, n_ctx=self._n_tokens)
