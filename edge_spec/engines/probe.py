"""What a loaded model can do on this device, found out by trying, once per file, settings, library and processor.

No table could tell: whether rows are bit-identical in every width depends on the kernels that this library, this
processor, these weights and this cache end up with.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from pathlib import Path
from time import perf_counter
from typing import Protocol

import numpy as np

from edge_spec.engines.records import FOLDER, write_record
from edge_spec.engines.settings import ModelSettings
from edge_spec.errors import BAD_RECORD, BackendError
from edge_spec.speculation.language_model import Capabilities, LanguageModel, NumericsProfile
from edge_spec.speculation.tree import Tree

__all__ = [
    "OWN_DEPTHS",
    "PLAIN",
    "ProbeResult",
    "Probed",
    "known_profile",
    "probe",
    "probe_once",
    "probed_depths",
]

PLAIN = Capabilities(can_rollback=False, takes_trees=False, widths=(1,), max_rows=1)
"""What every model can do."""

_WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64)

_DEPTHS = (24, 256, 520)
"""Used cells before the rows that are compared: a fresh cache, one from which on llama.cpp's fused attention takes
another path for a single row (it pads to 512 cells), and one that has passed 512 as well."""

OWN_DEPTHS = (24, 100)
"""The same for our own kernels, which take one path at every depth, tile by tile (the tests hold them to that)."""

_CUTS = 4
"""How many full decodes of tokens are divided in different ways, where that is asked for."""


class Probed(LanguageModel, Protocol):
    """A model whose capabilities and profile can be set to what was found."""

    capabilities: Capabilities
    profile: NumericsProfile

    @property
    def settings(self) -> ModelSettings:
        """The settings that it was opened with."""


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """Capabilities, and seconds of one decode by number of rows as measured in passing."""

    capabilities: Capabilities
    seconds: Mapping[int, float]


def probe(model: Probed, *, external: bool = False, fp16: bool = False, depths: Sequence[int] = _DEPTHS) -> ProbeResult:
    """Find out what ``model`` can do; its cache is empty before and after.

    Three things are tried. Rollback: decode two tokens and remove one. Widths: decode the same tokens after the same
    text in several widths and compare bit by bit. Trees: decode two continuations in one call and compare with each of
    them alone.

    Args:
        external: the model's operators are not known, and one try proves little. What was found is tried again with a
            text divided in many ways, and has to hold for all of them.
        fp16: the model rounds to 16 bits on the way, which hides most differences. A single row, which libraries
            multiply by other code than several, then never counts as one of several, however alike they look.
        depths: cells in use where rows are compared.
    """
    max_rows = model.settings.max_rows
    widths = tuple(n for n in _WIDTHS if n <= max_rows)
    model.capabilities = Capabilities(can_rollback=True, takes_trees=model.settings.trees, widths=(), max_rows=max_rows)
    # Any text will do, the same one every time; low ids can be control tokens.
    text = np.random.default_rng(1).integers(min(256, model.n_vocab - 1), model.n_vocab, 600).tolist()
    if not _can_rollback(model, text):
        model.rollback(0)
        return ProbeResult(
            capabilities=Capabilities(can_rollback=False, takes_trees=False, widths=(1,), max_rows=1), seconds={}
        )
    if not model.settings.exact:
        # A drafter's rounding never reaches the text.
        return _probe_drafter(model, text, depths[0])
    seconds: dict[int, float] = {}
    alike = set(widths)
    trees = model.settings.trees
    reached = probed_depths(model.n_ctx, depths)
    for depth in reached:
        model.rollback(min(depth, model.n_past))
        model.prefill(text[model.n_past : depth])
        rows = {n: _rows(model, text[depth : depth + n], seconds) for n in reversed(widths)}
        if depth == reached[0]:
            # Once more, warm: the first decode of a width pays for page faults.
            rows = {n: _rows(model, text[depth : depth + n], seconds) for n in reversed(widths)}
        alike &= _largest_class(rows)
        trees = trees and _takes_trees(model, text[depth : depth + 4])
    model.rollback(0)
    # To compute three rows wherever one is wanted would cost more than identity is worth: report rounding instead.
    exact = tuple(sorted(alike)) if alike and min(alike) <= 2 else ()
    # More rows than the widest width would be outside the class.
    most = exact[-1] if exact else max_rows
    capabilities = Capabilities(can_rollback=True, takes_trees=trees, widths=exact, max_rows=most)
    if external and exact:
        capabilities = _confirmed(model, capabilities, text, max_rows, single=not fp16)
        most = capabilities.max_rows
    if exact and not external:
        model.capabilities = capabilities
        capabilities = replace(capabilities, reuse_step=int(_reads_alike(model, text, reached[-1])))
    # A decode of n rows takes as long as one of its padded width.
    return ProbeResult(
        capabilities=capabilities, seconds={n: seconds[capabilities.padded(n)] for n in widths if n <= most}
    )


def _probe_drafter(model: Probed, text: Sequence[int], depth: int) -> ProbeResult:
    model.prefill(text[model.n_past : min(depth, model.n_ctx)])
    trees = model.settings.trees and _takes_trees(model, text[model.n_past : model.n_past + 4])
    model.rollback(0)
    capabilities = Capabilities(can_rollback=True, takes_trees=trees, widths=(), max_rows=model.settings.max_rows)
    return ProbeResult(capabilities=capabilities, seconds={})


def probed_depths(n_ctx: int, depths: Sequence[int] = _DEPTHS) -> list[int]:
    """The depths that a text in a context can reach; at least one."""
    return [min(depths[0], n_ctx), *(depth for depth in depths[1:] if depth <= n_ctx)]


def _can_rollback(model: Probed, text: Sequence[int]) -> bool:
    try:
        model.prefill(text[:2])
        model.rollback(1)
    except BackendError:
        return False
    return True


def _rows(model: Probed, tokens: Sequence[int], seconds: dict[int, float]) -> list[bytes]:
    """A digest of each row: the rows themselves, of all widths, would take too much memory on a small computer."""
    start = perf_counter()
    rows = model.decode(Tree.sequence(tokens))
    seconds[len(tokens)] = min(perf_counter() - start, seconds.get(len(tokens), float("inf")))
    digests = [blake2b(row.data, digest_size=16).digest() for row in rows]
    model.rollback(model.n_past)
    return digests


def _largest_class(rows: Mapping[int, list[bytes]]) -> set[int]:
    """The largest set of widths whose rows agree bit for bit wherever two of them have a row."""
    classes: list[set[int]] = []
    for n in rows:
        for members in classes:
            if all(rows[n][: min(n, m)] == rows[m][: min(n, m)] for m in members):
                members.add(n)
                break
        else:
            classes.append({n})
    return max(classes, key=lambda members: (len(members), -min(members)))


def _confirmed(
    model: Probed, capabilities: Capabilities, text: Sequence[int], max_rows: int, *, single: bool
) -> Capabilities:
    """What was found if it holds, or holds where single rows are padded; else only what holds for every model."""
    wider = tuple(n for n in capabilities.widths if n > 1)
    # Where every row is computed alone, there are no others that it could differ from.
    for widths in dict.fromkeys((capabilities.widths, wider) if single or not wider else (wider,)):
        model.capabilities = replace(capabilities, widths=widths)
        if widths and _holds(model, text):
            break
    else:
        model.capabilities = replace(capabilities, widths=(), max_rows=max_rows)
    model.rollback(0)
    return model.capabilities


def _holds(model: Probed, text: Sequence[int]) -> bool:
    """Whether a row has the same bits at every place in a decode, whatever the number of rows."""
    wide = min(model.capabilities.max_rows, model.n_ctx)
    model.rollback(0)
    model.prefill(text[: max(0, min(_DEPTHS[0], model.n_ctx - _CUTS * wide))])
    cut = 0
    while cut < _CUTS * wide and model.n_past + wide <= model.n_ctx:
        ahead = text[model.n_past : model.n_past + wide]
        rows = model.decode(Tree.sequence(ahead)).copy()
        model.rollback(model.n_past)
        for first in range(wide):
            n = min(1 + cut % wide, wide - first)
            if not np.array_equal(model.decode(Tree.sequence(ahead[first : first + n])), rows[first : first + n]):
                return False
            model.keep([0])
            cut += 1
    return True


def _reads_alike(model: Probed, text: Sequence[int], deepest: int) -> bool:
    """Whether a text leaves the same cells read at once, in chunks of other lengths, and in decodes of all widths.

    Rows after it show it: each of them depends on all cells.
    """
    depth = min(deepest, model.n_ctx - 4)
    if depth < _DEPTHS[0] // 2:
        return False
    first: list[bytes] | None = None
    for chunks in ((depth,), (1, 7, 33, 100, 159), ()):
        model.rollback(0)
        turn = 0
        while model.n_past < depth:
            left = text[model.n_past : depth]
            if chunks:
                model.prefill(left[: chunks[turn % len(chunks)]])
            else:
                n = min(len(left), 1 + turn % model.capabilities.max_rows)
                model.decode(Tree.sequence(left[:n]))
                model.keep(range(n))
            turn += 1
        rows = _rows(model, text[depth : depth + min(4, model.capabilities.max_rows)], {})
        first = first or rows
        if rows != first:
            break
    model.rollback(0)
    return rows == first


def _takes_trees(model: Probed, tokens: Sequence[int]) -> bool:
    """Whether two branches in one decode give the rows of two sequences: the same bits if exactness is wanted."""
    root, first, side, deep = tokens
    try:
        together = model.decode(Tree((root, first, side, deep), (-1, 0, 0, 2))).copy()
    except BackendError:
        return False
    model.rollback(model.n_past)
    alone = model.decode(Tree.sequence((root, side, deep, first))).copy()
    model.rollback(model.n_past)
    if model.settings.exact:
        return np.array_equal(together[[0, 2, 3]], alone[:3])
    return np.allclose(together[[0, 2, 3]], alone[:3], atol=0.05 * float(alone.std()) + 1e-3)


_VERSION = 5

ProfileOf = Callable[[tuple[int, ...]], NumericsProfile]
"""The numerics profile of a model by the widths that probing finds; empty before."""


def probe_once(
    model: Probed,
    profile_of: ProfileOf,
    *,
    file: str,
    cache_dir: Path | None,
    on_probe: Callable[[], None],
    can_shift: bool,
    external: bool = False,
    fp16: bool = False,
    depths: Sequence[int] = _DEPTHS,
) -> ProbeResult:
    """Give a model the capabilities and the profile that ``probe`` finds, or found the last time.

    Args:
        model: with ``profile_of(())``; closed if probing fails.
        file: fingerprint of the model file.
        cache_dir: where results are kept; None for nowhere.
        on_probe: called before anything is tried, which takes as long as reading a text of some hundred tokens.
        can_shift: see ``Capabilities``; not probed.
        external, fp16, depths: see ``probe``.
    """
    path = _place(cache_dir, file, model.settings, model.profile) if cache_dir is not None else None
    found = _read(path)
    if found is None:
        on_probe()
        try:
            found = probe(model, external=external, fp16=fp16, depths=depths)
        except BaseException:
            model.close()
            raise
        _write(path, found)
    # What cannot be shown to be alike serves only where it would be computed in the very same way.
    step = found.capabilities.reuse_step or (model.settings.prefill_chunk if found.capabilities.can_rollback else 0)
    model.capabilities = replace(
        found.capabilities, can_shift=can_shift, reuse_step=step, prefill_chunk=model.settings.prefill_chunk
    )
    model.profile = profile_of(found.capabilities.widths)
    return found


def known_profile(
    file: str, settings: ModelSettings, profile_of: ProfileOf, *, cache_dir: Path | None
) -> NumericsProfile | None:
    """The profile that ``probe_once`` would give a model; None if it has yet to be probed."""
    found = _read(_place(cache_dir, file, settings, profile_of(())) if cache_dir is not None else None)
    return profile_of(found.capabilities.widths) if found is not None else None


def _place(cache_dir: Path, file: str, settings: ModelSettings, profile: NumericsProfile) -> Path:
    """The file of a result."""
    # n_ctx only decides how deep the probe can go.
    values = asdict(settings) | {"n_ctx": None, "threads": settings.threads}
    facts = [fact for fact in profile.facts if fact[0] != "n_ctx"]
    key = json.dumps([_VERSION, file, values, probed_depths(settings.n_ctx), facts], sort_keys=True)
    return cache_dir / FOLDER / f"{blake2b(key.encode(), digest_size=12).hexdigest()}.json"


def _read(path: Path | None) -> ProbeResult | None:
    """A kept result; None if there is none or it is damaged."""
    if path is None:
        return None
    try:
        found = json.loads(path.read_text("utf-8"))
        capabilities = found["capabilities"] | {"widths": tuple(map(int, found["capabilities"]["widths"]))}
        seconds = {int(n): float(s) for n, s in found["seconds"].items()}
        return ProbeResult(capabilities=Capabilities(**capabilities), seconds=seconds)
    except (OSError, *BAD_RECORD):
        return None


def _write(path: Path | None, result: ProbeResult) -> None:
    """Keep a result, whole or not at all; a cache that cannot be written is not a reason to fail."""
    if path is not None:
        write_record(path, {"capabilities": asdict(result.capabilities), "seconds": dict(result.seconds)})
