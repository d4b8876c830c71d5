"""A checked request for models to load."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from edge_spec.controller.drafter_choice import (
    ReadFile,
    check_head,
    named,
    own_drafter,
    own_intermediate,
    verifier_of,
)
from edge_spec.controller.options import DEFAULT_N_CTX, LoadOptions
from edge_spec.engines.base import Engine, ModelSettings
from edge_spec.engines.registry import (
    AUTO,
    able,
    fallback,
    require_installed,
    settings_of,
    usable,
    why_none,
)
from edge_spec.engines.registry import engine as engine_of
from edge_spec.engines.registry import engines as all_engines
from edge_spec.errors import Arguments, Sentence, SettingsError, UnsupportedModel
from edge_spec.models import Family, ModelFile, check_pair, inspect, resolve, resolve_family
from edge_spec.models.heads import is_head, reads, require_a_model
from edge_spec.models.pairs import drafter_file
from edge_spec.speculation.modes import MODES, Mode, mode_of, require_models

__all__ = ["Request", "fallbacks", "given_roles", "request_of", "request_of_files"]

_MIN_N_CTX = 256
"""The shortest context that is chosen for lack of memory."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request for models to load.

    Attributes:
        files: by role.
        engines: what may run each of them, by role, in the order of preference.
        passed_over: why an engine that comes before these is not among them, by role.
        settings: of the target.
        fixed: names of the settings that the user gave: these are never changed.
        modes: ways to speculate that are acceptable, best first.
        min_n_ctx: tokens of context that are the least.
        max_n_ctx: the most tokens of context if memory allows; 0 for no more than in ``settings``.
        n_texts: number of texts whose caches must fit at once.
        draft_limit: tokens drafted per round; the mode's own if None.
        next_limit: called before every round for the most tokens to draft instead.
        notes: sentences that the user should know.
        drafts: the sentence that says which published head drafts, where it was found, not named; else empty.
    """

    files: Mapping[str, ModelFile]
    engines: Mapping[str, tuple[Engine, ...]]
    passed_over: Mapping[str, str]
    settings: ModelSettings
    fixed: frozenset[str]
    modes: tuple[Mode, ...]
    min_n_ctx: int = _MIN_N_CTX
    max_n_ctx: int = 0
    n_texts: int = 1
    draft_limit: int | None = None
    next_limit: Callable[[], int] | None = None
    notes: tuple[str, ...] = ()
    drafts: str = ""

    @property
    def target(self) -> ModelFile:
        """The file of the model whose text is wanted."""
        return self.files["target"]

    @property
    def min_rows(self) -> int:
        """Rows of a decode that drafts of the requested length need."""
        return (self.draft_limit or 0) + 1

    def limit_of(self, mode: Mode) -> Callable[[], int]:
        """Return the draft limit of a reply in a mode."""
        limit = self.draft_limit or mode.limit
        return self.next_limit or (lambda: limit)

    @property
    def in_question(self) -> tuple[Engine, ...]:
        """All engines that may run any of the files."""
        return tuple(dict.fromkeys(each for choices in self.engines.values() for each in choices))

    @property
    def readers(self) -> list[tuple[ModelFile, tuple[Engine, ...]]]:
        """The engines that may read each file."""
        return [(file, self.engines[role]) for role, file in self.files.items()]

    def contexts(self) -> Iterator[int]:
        """Sizes of the context, as requested and then smaller and smaller."""
        n_ctx = self.settings.n_ctx
        yield n_ctx
        while n_ctx // 2 >= self.min_n_ctx:
            n_ctx //= 2
            yield n_ctx

    def assignments(self) -> Iterator[dict[str, Engine]]:
        """Yield an engine for every role: each role's first choice, then second choices."""
        for place in range(max(map(len, self.engines.values()))):
            yield {role: choices[min(place, len(choices) - 1)] for role, choices in self.engines.items()}

    def why_not_run(self, mode: Mode, engines: Mapping[str, Engine]) -> str | None:
        """Return why these engines cannot run a mode, as a clause; None if they can.

        The target has to verify drafts, and a head reads hidden states.
        """
        why = why_not_draft((engines["target"],), self.target, mode)
        if why is not None or "draft" not in mode.needs:
            return why
        # A small model drafts for its verifier; a head drafts for the model whose states it reads, if that is loaded.
        draft = self.files["draft"]
        verifier = verifier_of(self.files) if is_head(draft) else "target"
        if verifier not in ("target", *mode.needs):
            return f"{draft.path.name} drafts for the {verifier} model only"
        why = engines[verifier].why_not_drafter(draft, self.files[verifier])
        return why and f"{draft.path.name} {why}"

    def in_types_of(self, profile: Mapping[str, str]) -> Request:
        """Return the same request with the types of cached keys and values of a numerics profile of the same model.

        Types that the user gave stay. Those of the profile are not fixed: memory may have room for smaller ones only.

        Args:
            profile: its facts, and the name of the engine as ``engine``; any text may stand there.
        """
        engine, kinds = self.engines["target"][0], profile.get("kv", "").split("/")
        is_same = (profile.get("engine"), profile.get("file")) == (engine.name, self.target.fingerprint)
        if not is_same or {"kv_k", "kv_v"} & self.fixed or len(kinds) != 2:
            return self
        with suppress(SettingsError):
            settings = replace(self.settings, kv_k=kinds[0], kv_v=kinds[1])
            if not {"kv_k", "kv_v"} & {*engine.unused(settings)} and engine.resolve(self.target, settings):
                return replace(self, settings=settings)
        return self

    def without(self, role: str, why: str) -> Request:
        """Return the same request without the first choice of a role."""
        return replace(
            self,
            engines={**self.engines, role: self.engines[role][1:]},
            passed_over={**self.passed_over, role: why},
        )

    def unrestricted(self, modes: tuple[Mode, ...]) -> Request:
        """Return the same files with nothing fixed but the context, up to what the target was trained for."""
        n_ctx = min(self.settings.n_ctx, self.target.n_ctx_train or DEFAULT_N_CTX)
        return replace(
            self,
            settings=ModelSettings(n_ctx=max(_MIN_N_CTX, n_ctx)),
            fixed=frozenset(),
            modes=modes,
            min_n_ctx=_MIN_N_CTX,
        )


def request_of(asked: LoadOptions, read_file: ReadFile = inspect) -> Request:
    """Return the request that options of ``load`` describe; only headers of files are read.

    Args:
        read_file: reads them.

    Raises:
        ModelFileError, VocabularyMismatch, SettingsError: see ``load``.
    """
    family = resolve_family(asked.model)
    mode, files, note = _mode_and_files(family, asked, read_file)
    request = _request(asked, mode, files, notes=(note, family.note))
    draft = files.get("draft")
    is_found = asked.draft is None and draft is not None and is_head(draft) and draft.trimmed is None
    return replace(request, drafts=f"{named(draft.path, files['target'])} drafts") if draft and is_found else request


def request_of_files(files: Mapping[str, ModelFile], asked: LoadOptions) -> Request:
    """Return the request for models that are not downloaded, from their headers.

    Args:
        files: by role.

    Raises:
        UnsupportedModel, SettingsError: see ``load``.
    """
    mode = mode_of("auto", given=frozenset(files) - {"target"})
    return _request(asked, mode, {"target": files["target"], **{role: files[role] for role in mode.needs}})


def _request(asked: LoadOptions, mode: Mode, files: dict[str, ModelFile], *, notes: tuple[str, ...] = ()) -> Request:
    """Return the request for some files, by role."""
    target, limit = files["target"], asked.draft_limit
    wanted = asked.n_ctx or asked.min_n_ctx
    settings = settings_of(wanted or _n_ctx(target), asked.settings)
    most = _most_n_ctx(files.values(), settings, wanted, "n_ctx" if asked.n_ctx else "min_n_ctx")
    settings = replace(settings, n_ctx=min(settings.n_ctx, most or settings.n_ctx))
    chosen = {role: _engines(role, file, asked, settings) for role, file in files.items()}
    why_plain = why_not_draft(chosen["target"][0], target, mode)
    plainly = ""
    if why_plain is not None:
        # The variant of ``auto`` has the name of the mode with the same models.
        name = asked.speculation if isinstance(asked.speculation, str) else mode.name
        plainly = Sentence("speculation {mode} is off: {why}", mode=repr(name), why=why_plain)
        mode, files, chosen = MODES["off"], {"target": target}, {"target": chosen["target"]}
    engines = {role: choices for role, (choices, _) in chosen.items()}
    _refuse_unused(files, engines, settings)
    return Request(
        files=files,
        engines=engines,
        passed_over={role: why for role, (_, why) in chosen.items() if why},
        settings=settings,
        fixed=frozenset(asked.settings),
        modes=(mode, *fallbacks(mode)) if asked.speculation == "auto" and asked.next_limit is None else (mode,),
        min_n_ctx=settings.n_ctx if wanted else _MIN_N_CTX,
        max_n_ctx=(most or _n_ctx(target, limit=False)) if asked.min_n_ctx else 0,
        n_texts=asked.texts,
        draft_limit=limit,
        next_limit=asked.next_limit,
        notes=tuple(filter(None, (*notes, plainly, *_notes(target, settings), *_slow(files, engines)))),
    )


def _notes(target: ModelFile, settings: ModelSettings) -> Iterator[str]:
    """Yield notes about parts of the request that cannot be fulfilled."""
    for name, n in zip(("n_threads", "n_threads_batch"), settings.threads, strict=True):
        if (asked := getattr(settings, name)) > n:
            yield Sentence(
                f"{{{name}}} is {{asked}}, and this processor runs {{n}} threads at a time: these are used",
                asked=asked,
                n=n,
            )
    trained = target.n_ctx_train
    if 0 < trained < settings.n_ctx:
        said = "{file} was trained for {trained} tokens, not {asked}; {instead} avoids that"
        instead = Arguments(n_ctx=trained)
        yield Sentence(said, file=target.path.name, trained=trained, asked=settings.n_ctx, instead=instead)


def _slow(files: Mapping[str, ModelFile], engines: Mapping[str, tuple[Engine, ...]]) -> Iterator[str]:
    """Yield notes about models that run slowly because a better engine is not installed."""
    for role, choices in engines.items():
        why = choices[0].why_not_here(files[role])
        if why is not None:
            others = ", or ".join(each.how_to_install() for each in able(files[role], installed=False))
            helps = Sentence("; for speed run {command}", command=others) if others else ""
            said = "{title} runs {file} slowly: {why}{helps}"
            yield Sentence(said, title=choices[0].title, file=files[role].path.name, why=why, helps=helps)


def _mode_and_files(family: Family, asked: LoadOptions, read_file: ReadFile) -> tuple[Mode, dict[str, ModelFile], str]:
    """Return the mode, the files that it needs by role, and a sentence about them, or none.

    Raises:
        ModelFileError, VocabularyMismatch, SettingsError: see ``load``.
    """
    target = read_file(family.target)
    require_a_model(target)
    if target.trimmed is not None or is_head(target):
        raise UnsupportedModel(
            f"{target.path.name} only drafts for the model that it was made for",
            hint=Sentence("give that model, and this file as {draft}"),
        )
    draft, intermediate, engine = asked.draft, asked.intermediate, asked.engine
    path, note = own_drafter(family, target, engine, read_file) if draft is None else (resolve(draft), "")
    own = drafter_file(path, target, read_file) if path is not None else None
    found = own_intermediate(family, own, read_file) if intermediate is None else resolve(intermediate)
    between = read_file(found) if found is not None else None
    if draft is None and own is not None and intermediate is not None and is_head(own):
        # This head was not requested, and it drafts for the target alone.
        own = own if between is not None and reads(own, between) else None
    given = {"draft": own, "intermediate": between}
    roles = given_roles(own, between)
    mode = asked.speculation
    if not isinstance(mode, Mode):
        mode = mode_of(mode, given=roles)
        if asked.next_limit is not None:
            # The limit alone decides how far to draft: use the mode itself, not the variant of ``auto``.
            mode = MODES[mode.name]
    require_models(mode, roles)
    files = {role: file for role in mode.needs if (file := given[role]) is not None}
    for file in files.values():
        require_a_model(file)
        check_pair(target, file, verifier=files.get(verifier_of(files)))
    check_head(mode, files, target, engine)
    # A mode without a drafter that was asked for misses none.
    is_missed = asked.speculation == "auto" or "draft" in mode.needs
    return mode, {"target": target, **files}, note if is_missed else ""


def given_roles(draft: object, intermediate: object) -> frozenset[str]:
    """Roles of the smaller models that are given, which are not None."""
    return frozenset(role for role, each in (("draft", draft), ("intermediate", intermediate)) if each is not None)


def fallbacks(mode: Mode) -> tuple[Mode, ...]:
    """Return the fallbacks of a mode, with fewer and fewer models, and at last without drafts."""
    given = set(mode.needs)
    found = []
    for role in ("intermediate", "draft"):
        if role in given:
            given.remove(role)
            found.append(mode_of("auto", given=frozenset(given)))
    return (*found, MODES["off"]) if mode.limit else ()


def why_not_draft(engines: Iterable[Engine], target: ModelFile, mode: Mode) -> str | None:
    """Return why none of some engines can verify the drafts of a mode, as a clause; None if one may."""
    obstacles = [each.why_not_draft(target, trees=mode.target_trees) for each in engines] if mode.limit else [None]
    return None if None in obstacles else obstacles[0]


def _n_ctx(target: ModelFile, *, limit: bool = True) -> int:
    """Return the context that a model was trained for, up to the default if there is a ``limit``."""
    trained = target.n_ctx_train or DEFAULT_N_CTX
    return min(trained, DEFAULT_N_CTX) if limit else trained


def _most_n_ctx(files: Iterable[ModelFile], settings: ModelSettings, wanted: int | None, argument: str) -> int | None:
    """Return the longest context in which every token, of drafts too, has a position; None if no model lists them.

    Raises:
        SettingsError: a longer one is wanted. UnsupportedModel: there is none.
    """
    file = min((each for each in files if each.n_positions), key=lambda each: each.n_positions, default=None)
    if file is None:
        return None
    room = settings.n_cells - settings.n_ctx
    most = file.n_positions - room
    if most < 2:
        raise UnsupportedModel(
            f"{file.path} knows {file.n_positions} positions, and drafts may need {room}", hint="choose another model"
        )
    if wanted and wanted > most:
        known = f"{file.path.name} knows {file.n_positions} positions, of which drafts may need {room}"
        instead = Arguments({argument: most})
        hint = Sentence("use {instead} or less", instead=instead)
        raise SettingsError(f"is {wanted}, and {known}", argument=argument, hint=hint)
    return most


def _engines(role: str, file: ModelFile, asked: LoadOptions, settings: ModelSettings) -> tuple[tuple[Engine, ...], str]:
    """Return the engines that may run a file, and why preferred ones cannot.

    Raises:
        UnsupportedModel: the engine that was asked for cannot run it. SettingsError: no engine has that name.
    """
    name = asked.engine_of(role)
    if name is None:
        of_target = asked.engine
        name = of_target if of_target != AUTO and engine_of(of_target).why_not(file) is None else AUTO
    there = able(file)
    if name == AUTO:
        if (refusal := why_none(file)) is not None:
            raise refusal
        obstacles = [each.why_not_first(file, settings, cache_dir=asked.folder) for each in there]
        good = tuple(each for each, why in zip(there, obstacles, strict=True) if why is None)
        return (good, obstacles[0] or "") if good else ((fallback(there),), "")
    wanted = engine_of(name)
    why = wanted.why_not(file)
    if why is not None:
        raise UnsupportedModel(
            Sentence("{which}: {why}", which=f"{wanted.title} cannot run {file.path.name}, the {role} model", why=why),
            hint="leave the engine to edge-spec",
        )
    require_installed(wanted)
    missing = wanted.why_not_here(file)
    others = [each for each in there if each is not wanted] if missing is not None else []
    return ((fallback(others),), missing or "") if others else ((wanted,), "")


def _refuse_unused(
    files: Mapping[str, ModelFile], engines: Mapping[str, tuple[Engine, ...]], settings: ModelSettings
) -> None:
    """Raise if settings have no effect on any of the possible engines.

    Raises:
        SettingsError: some have no effect.
    """
    asked = {each for choices in engines.values() for each in choices}
    unused = sorted(frozenset.intersection(*(frozenset(each.unused(settings)) for each in asked)))
    if unused:
        name, titles = unused[0], " and ".join(sorted(each.title for each in asked))
        # One of the types of caches always has an effect.
        value = f"is {getattr(settings, name)!r}, which " if name in ("kv_k", "kv_v") else ""
        raise SettingsError(f"{value}has no effect on {titles}", argument=name, hint=_without(name, files, settings))


def _without(name: str, files: Mapping[str, ModelFile], settings: ModelSettings) -> str:
    """Return the hint for a setting without effect."""
    heed = [each for each in all_engines() if name not in each.unused(settings)]
    fit = [each for each in heed if any(each.why_not(file) is None for file in files.values())]
    if not fit:
        return "leave it out"
    if usable(fit):
        return Sentence("leave it out, or use another {engine}")
    return Sentence("leave it out, or use another {engine}, for which run: {command}", command=fit[0].how_to_install())
