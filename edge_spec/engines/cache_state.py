"""What models do alike on every engine: check what is asked of a pending tree, and save a cache.

A saved cache is an engine's bytes in an envelope that shows damage, and which numerics profile they belong to.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from hashlib import blake2b

from edge_spec.engines.settings import ModelSettings
from edge_spec.errors import ContextFull, Sentence, StateError
from edge_spec.speculation.language_model import Capabilities, NumericsProfile
from edge_spec.speculation.tree import EMPTY, Tree
from edge_spec.tokens.kept_tokens import KeptTokens

__all__ = ["CachedModel", "check_path", "n_new_nodes", "pack_state", "require_distinct", "restated", "unpack_state"]

_ENVELOPE = struct.Struct("<8s32sQ16s")
_MAGIC = b"edgekv01"
_HINT = "read the text again instead"


class CachedModel:
    """The part of a ``LanguageModel`` that is the same on every engine: it counts tokens and checks what it is asked.

    Attributes:
        settings: those that it was opened with.
    """

    def __init__(
        self, settings: ModelSettings, n_vocab: int, profile: NumericsProfile, capabilities: Capabilities
    ) -> None:
        self.settings = settings
        self.n_vocab = n_vocab
        self.n_ctx = settings.n_ctx
        self.profile = profile
        self.capabilities = capabilities
        self.kept: KeptTokens | None = None
        self._n_past = 0
        self._pending: Tree = EMPTY

    @property
    def n_past(self) -> int:
        """How many tokens are committed."""
        return self._n_past

    def hold(self) -> None:
        """Nothing has to be done where a cache can go back anywhere."""

    def _require_room(self, n_new: int, *, drafts: bool = False) -> None:
        """Refuse tokens that do not fit after the text; drafts may extend beyond the context."""
        if self._n_past + n_new > self.n_ctx + drafts * self.settings.max_rows:
            raise ContextFull(n_past=self._n_past, n_new=n_new, n_ctx=self.n_ctx)

    def _require_tokens(self, what: str, first: int, last: int) -> None:
        """Refuse a ``what``, such as a shift, of tokens that are not there."""
        if not 0 <= first <= last <= self._n_past:
            raise ValueError(f"{what} of tokens {first} to {last} of a text of {self._n_past}")


def n_new_nodes(tree: Tree, pending: Tree, *, max_rows: int) -> int:
    """Return how many nodes of ``tree`` come after the pending ones.

    Raises:
        ValueError: the tree does not begin with the pending nodes, or there are none or too many new ones.
    """
    first = len(pending)
    n = len(tree) - first
    if not 1 <= n <= max_rows:
        raise ValueError(f"{n} rows in one decode; from 1 to {max_rows} are possible")
    if first and (tree.tokens[:first], tree.parents[:first]) != (pending.tokens, pending.parents):
        raise ValueError("a tree can only be grown: its first nodes must be the pending ones")
    return n


def require_distinct(paths: Iterable[object]) -> None:
    """Refuse a decode in which a text comes twice."""
    paths = [id(path) for path in paths]
    if len(set(paths)) < len(paths):
        raise ValueError("a text comes twice in one decode")


def check_path(path: Sequence[int], pending: Tree) -> None:
    """Refuse anything but a path down the pending tree from its top.

    Raises:
        ValueError: it is something else.
    """
    for above, node in zip([-1, *path], path, strict=False):
        if pending.parents[node] != above:
            raise ValueError(f"{list(path)} is not a path down the pending tree")


def pack_state(body: bytes, *, n_past: int, profile: str) -> bytes:
    """Magic, profile name, number of tokens and a checksum over all but the magic, then the body."""
    name = profile.encode()
    return _ENVELOPE.pack(_MAGIC, name, n_past, _checksum(name, n_past, body)) + body


def _checksum(name: bytes, n_past: int, body: bytes) -> bytes:
    digest = blake2b(struct.pack("<32sQ", name, n_past), digest_size=16)
    digest.update(body)
    return digest.digest()


def unpack_state(state: bytes, *, profile: str, n_ctx: int) -> tuple[bytes, int]:
    """Return the body and its number of tokens.

    Raises:
        StateError: damaged, saved under another numerics profile, or more tokens than a context of ``n_ctx`` holds.
    """
    body, n_past, saved = _opened(state)
    if saved != profile:
        raise StateError(f"the saved state belongs to the numerics profile {saved}, this is {profile}", hint=_HINT)
    if n_past > n_ctx:
        raise StateError(
            f"the saved state holds {n_past} tokens and the context {n_ctx}", hint=Sentence("raise {n_ctx}")
        )
    return body, n_past


def restated(state: bytes, *, profile: str) -> bytes:
    """Return the same state under another profile, for callers that know that its cells mean the same there.

    Raises:
        StateError: damaged.
    """
    body, n_past, _ = _opened(state)
    return pack_state(body, n_past=n_past, profile=profile)


def _opened(state: bytes) -> tuple[bytes, int, str]:
    """Body, number of tokens and profile."""
    if len(state) < _ENVELOPE.size:
        raise StateError("the saved state is damaged", hint=_HINT)
    magic, name, n_past, digest = _ENVELOPE.unpack_from(state)
    body = state[_ENVELOPE.size :]
    if magic != _MAGIC or _checksum(name, n_past, body) != digest:
        raise StateError("the saved state is damaged", hint=_HINT)
    return body, n_past, name.rstrip(b"\0").decode("utf-8", "replace")
