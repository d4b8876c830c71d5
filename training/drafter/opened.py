"""The models as the training needs them: rows of logits and a tokenizer, on one engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from edge_spec.engines.base import Engine, HiddenRows
from edge_spec.engines.registry import AUTO, able, engine, engines, why_none
from edge_spec.engines.settings import ModelSettings
from edge_spec.errors import Arguments, Sentence, UnsupportedModel
from edge_spec.models import ModelFile
from edge_spec.models.heads import is_head
from edge_spec.speculation.pool import Path as TextPath
from edge_spec.tokens.tokenizer import Tokenizer

__all__ = ["engine_for", "opened", "opened_drafter", "opened_with_hidden_rows", "require_hidden_rows"]


def engine_for(file: ModelFile, name: str) -> Engine:
    """Return the engine that writes: by default the one with edge-spec's own kernels.

    Raises:
        UnsupportedModel: it cannot run the file, or not fast. SettingsError: there is no such engine.
    """
    chosen = engines()[0] if name == AUTO else engine(name)
    why = chosen.why_not(file) or (chosen.why_not_here(file) if name == AUTO else None)
    if why is None:
        return chosen
    if name == AUTO and (refusal := why_none(file)) is not None:
        raise refusal
    others = [each.name for each in able(file) if each is not chosen]
    slower = "let another engine write, which takes several times as long: {instead}"
    raise UnsupportedModel(
        f"{file.path.name} cannot write on {chosen.title}: {why}",
        hint=Sentence(slower, instead=Arguments(engine=others[0])) if others else "choose another model",
    )


@contextmanager
def opened(
    file: ModelFile, on: Engine, n_ctx: int, *, cache_dir: Path | None, exact: bool = False
) -> Iterator[tuple[TextPath, Tokenizer]]:
    """A model and its tokenizer; unless it is ``exact``, its rounding may depend on the rows of a decode."""
    settings = on.resolve(file, ModelSettings(n_ctx=n_ctx, exact=exact))
    with (
        closing(on.opener(cache_dir=cache_dir)) as opener,
        closing(opener.open(file, settings).pool) as pool,
    ):
        yield pool.path(), opener.tokenizer(file)


def require_hidden_rows(file: ModelFile, on: Engine) -> None:
    """Refuse to make a head where it would have nothing to read.

    Raises:
        UnsupportedModel: the engine does not give the hidden states of this model, or it has recurrent layers.
    """
    make = "make a small model instead (`--kind model`)"
    if file.state_bytes:
        raise UnsupportedModel(f"{file.path.name} has recurrent layers, which no head is taught to read", hint=make)
    if on.gives_hidden_rows(file):
        return
    others = [each.name for each in engines() if each.gives_hidden_rows(file) and each.why_not(file) is None]
    run = Sentence("run it with {instead}, or {make}", instead=Arguments(engine=others[0]), make=make) if others else ""
    raise UnsupportedModel(
        f"a head reads hidden states, which {file.path.name} does not provide on {on.title}",
        hint=run or make,
    )


@contextmanager
def opened_with_hidden_rows(
    file: ModelFile, on: Engine, n_ctx: int, layers: Sequence[int], *, cache_dir: Path | None, exact: bool = False
) -> Iterator[tuple[TextPath, Tokenizer, HiddenRows]]:
    """As ``opened``, and what goes into some of the model's layers."""
    settings = on.resolve(file, ModelSettings(n_ctx=n_ctx, exact=exact))
    with (
        closing(on.opener(cache_dir=cache_dir)) as opener,
        closing(opener.open(file, settings).pool) as pool,
    ):
        path = pool.path()
        yield path, opener.tokenizer(file), opener.hidden_rows(path, file, layers)


@contextmanager
def opened_drafter(
    target: ModelFile, draft: ModelFile, on: Engine, n_ctx: int, *, cache_dir: Path | None
) -> Iterator[tuple[TextPath, TextPath | None]]:
    """A drafter, a small model or a head, and the target that has to read a text before a head does."""
    if not is_head(draft):
        with opened(draft, on, n_ctx, cache_dir=cache_dir) as (model, _):
            yield model, None
        return
    settings = ModelSettings(n_ctx=n_ctx, exact=False)
    with (
        closing(on.opener(cache_dir=cache_dir)) as opener,
        closing(opener.open(target, on.resolve(target, settings)).pool) as read,
        closing(opener.open(draft, on.resolve(draft, settings), target=(read, target)).pool) as head,
    ):
        path = read.path()
        yield head.path(path), path
