"""Laws of engines as objects: what each of them answers before and after it has opened a model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gguf_files import write_gguf
from lone_text import lone_text
from published_models import publish
from published_weights import read_weights

from edge_spec.engines.base import Engine, Estimator, OpenedModel, Opener
from edge_spec.engines.onnx.kernels import why_slow
from edge_spec.engines.probe import ProbeResult
from edge_spec.engines.registry import engine, engine_names, engines, settings_of
from edge_spec.engines.settings import ModelSettings
from edge_spec.engines.tokenizers import open_tokenizer
from edge_spec.errors import Closed, SettingsError
from edge_spec.memory import Footprint
from edge_spec.models import ModelFile, inspect, resolve_family
from edge_spec.models.head_facts import HeadFacts
from edge_spec.sampling.gbnf import gbnf_to_lark
from edge_spec.sampling.guidance import GuidedGrammar, GuidedVocabulary
from edge_spec.speculation.language_model import NumericsProfile
from edge_spec.speculation.tree import Tree
from edge_spec.testing import TableModel, random_table

DRAFT = resolve_family("demo").draft
assert DRAFT is not None

needs_kernels = pytest.mark.skipif(why_slow() is not None, reason="no fast kernels here")
EACH = pytest.mark.parametrize(
    "each",
    [pytest.param(each, id=each.name, marks=[needs_kernels] * (each.name == "onnx")) for each in engines()],
)


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> ModelFile:
    return inspect(write_gguf(tmp_path_factory.mktemp("gguf") / "model.gguf"))


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> ModelFile:
    return inspect(publish(tmp_path_factory.mktemp("published"), read_weights(DRAFT), "plain"))


def small(**values: Any) -> ModelSettings:
    return settings_of(64, {"n_threads": 1} | values)


# --- settings


def test_an_engine_is_found_by_its_name() -> None:
    assert [each.name for each in engines()] == list(engine_names())
    assert all(engine(each.name) is each for each in engines())
    with pytest.raises(SettingsError, match="'tensor'"):
        engine("tensor")


def test_settings_are_those_of_all_engines_and_unknown_ones_are_refused() -> None:
    settings = settings_of(64, {"repack": False, "kv_k": "f16"})
    assert (settings.kv_k, dict(settings.extras)) == ("f16", {"repack": False})
    assert settings == settings_of(64, {"kv_k": "f16", "repack": False})
    assert len({settings, settings_of(64, {"kv_k": "f16", "repack": False}), settings_of(64, {})}) == 2
    with pytest.raises(SettingsError, match="n_treads"):
        settings_of(64, {"n_treads": 1})


@pytest.mark.parametrize(
    "wrong", [{"n_ctx": 0}, {"n_threads": -1}, {"kv_v": "q3"}, {"max_rows": 65}, {"prefill_chunk": 8}], ids=str
)
def test_values_out_of_range_name_their_argument(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError) as caught:
        ModelSettings(**({"n_ctx": 64} | wrong))
    assert caught.value.argument == next(iter(wrong))


@EACH
def test_resolved_settings_leave_nothing_open_and_stay_as_they_are(each: Engine, gguf: ModelFile) -> None:
    resolved = each.resolve(gguf, small())
    assert "auto" not in (resolved.kv_k, resolved.kv_v)
    assert each.resolve(gguf, resolved) == resolved
    assert each.resolve(gguf, replace(resolved, n_ctx=32)) == each.resolve(gguf, replace(small(), n_ctx=32))


def test_a_drafter_gets_the_context_of_its_target_and_few_threads(gguf: ModelFile) -> None:
    target = small(n_threads=4, prefill_chunk=512, max_rows=8)
    drafter = target.for_drafter(gguf, trees=True)
    assert (drafter.n_ctx, drafter.n_threads, drafter.exact, drafter.trees) == (64, 1, False, True)
    assert drafter.max_rows <= drafter.prefill_chunk < target.prefill_chunk


def test_a_head_gets_the_threads_of_its_target(gguf: ModelFile) -> None:
    head = replace(gguf, architecture="eagle3", head=HeadFacts(layers=(1, 2), width=gguf.n_embd, n_rows=gguf.n_vocab))
    assert small(n_threads=4).for_drafter(head, trees=False).n_threads == 4


@pytest.mark.parametrize(
    ("given", "unused"),
    [
        ({}, {"llama": (), "onnx": ()}),
        ({"repack": True}, {"llama": (), "onnx": ("repack",)}),
        ({"n_threads_batch": 2, "kv_k": "q8_0"}, {"llama": (), "onnx": ("kv_k", "n_threads_batch")}),
        ({"kv_k": "f16", "kv_v": "f16"}, {"llama": (), "onnx": ()}),
        ({"kv_k": "f16", "kv_v": "f32"}, {"llama": (), "onnx": ("kv_k", "kv_v")}),
    ],
    ids=str,
)
def test_settings_that_would_change_nothing_are_named(
    given: dict[str, Any], unused: dict[str, tuple[str, ...]], gguf: ModelFile, tmp_path: Path
) -> None:
    settings = settings_of(64, given)
    assert {each.name: each.unused(settings) for each in engines()} == unused
    for each in engines():
        why = each.why_not_first(gguf, settings, cache_dir=tmp_path)
        assert not unused[each.name] or (why is not None and ", ".join(unused[each.name]) in why)


# --- a new engine


class TableEstimator(Estimator):
    def _footprint(self, file: ModelFile, settings: ModelSettings, *, rough: bool) -> Footprint:
        return Footprint(copied_bytes=9)


class TableOpener(Opener):
    def open(self, file: ModelFile, settings: ModelSettings, **_: Any) -> OpenedModel:
        pool = TableModel(random_table(7), n_ctx=settings.n_ctx).pool
        return OpenedModel(pool=pool, probed=ProbeResult(capabilities=pool.capabilities, seconds={}))


class TableEngine(Engine):
    """All that a new engine has to write."""

    name, title, process_bytes, library_bytes, is_loaded = "table", "tables", 0, 0, True
    estimator, opener = TableEstimator, TableOpener

    def load_library(self, *, verbose: bool = False) -> None:
        """There is none."""

    def why_not(self, file: ModelFile) -> str | None:
        return "it is an ONNX graph" if file.graph is not None else None

    def resolve(self, file: ModelFile, settings: ModelSettings) -> ModelSettings:
        return replace(settings, kv_k="f32", kv_v="f32", extras={})

    def profile(self, file: ModelFile, settings: ModelSettings, *, cache_dir: Path | None) -> NumericsProfile | None:
        return None


def test_a_new_engine_writes_what_is_its_own(gguf: ModelFile, graph: ModelFile) -> None:
    new = TableEngine()
    assert new.why_not_here(gguf) is new.why_not_first(gguf, small(), cache_dir=None) is None
    assert new.why_not_first(graph, small(), cache_dir=None) == new.why_not(graph) is not None
    assert new.why_not_first(gguf, small(repack=True), cache_dir=None) == "repack would change nothing on tables"
    assert (list(new.variants(gguf, small(), frozenset())), new.smaller_caches(gguf, small())) == ([small()], [])
    with new.estimator() as estimator:
        assert estimator.footprint(gguf, small()) == Footprint(copied_bytes=9)
        assert estimator.footprint(gguf, small(), tokenizer=True).vocabulary_bytes > 0
    opener = new.opener(cache_dir=None)
    assert opener.prepare(gguf) is None
    assert lone_text(opener.open(gguf, small()).pool).n_ctx == 64
    opener.release(gguf)
    assert opener.tokenizer(gguf) is opener.tokenizer(gguf)
    opener.close()


@pytest.mark.long
@EACH
def test_who_waits_is_told_whether_it_is_for_the_last_time(each: Engine, gguf: ModelFile, tmp_path: Path) -> None:
    (tmp_path / "probes").write_text("a file where the folder should be")
    told: list[str] = []
    for folder in (tmp_path / "cache", tmp_path, None):
        opener = each.opener(cache_dir=folder, on_wait=told.append)
        lone_text(opener.open(gguf, small(kv_k="f16", kv_v="f16")).pool).close()
        opener.close()
    said = [sentence.partition(" these settings")[2] for sentence in told if sentence.startswith("calibrating")]
    assert said == [" (first time only)", f" (at every start: the cache folder {tmp_path} cannot be written)", ""]


# --- files


def test_every_kind_of_file_has_an_engine(gguf: ModelFile, graph: ModelFile) -> None:
    assert [each.name for each in engines() if each.why_not(gguf) is None] == ["onnx", "llama"]
    assert [each.name for each in engines() if each.why_not(graph) is None] == ["onnx"]


@EACH
def test_the_profile_is_known_as_soon_as_a_model_was_opened_once(each: Engine, gguf: ModelFile, tmp_path: Path) -> None:
    told: list[str] = []
    settings = small(kv_k="f16", kv_v="f16")
    assert each.profile(gguf, settings, cache_dir=tmp_path) is None
    for _ in range(2):
        opener = each.opener(cache_dir=tmp_path, on_wait=told.append)
        assert opener.prepare(gguf) is None
        model = lone_text(opener.open(gguf, settings).pool)
        assert model.profile == each.profile(gguf, settings, cache_dir=tmp_path)
        assert model.profile.engine == each.name
        assert ("kv", "f16/f16") in model.profile.facts
        model.close()
        opener.close()
    assert [sentence.split()[0] for sentence in told] == ["calibrating"]
    # A longer context is tried in deeper places.
    assert each.profile(gguf, replace(settings, n_ctx=80), cache_dir=tmp_path) is None
    assert each.profile(gguf, replace(settings, max_rows=32), cache_dir=tmp_path) is None
    for fewer in ({"n_ctx": 40}, {"max_rows": 8}, {"prefill_chunk": 16}):
        assert each.profile(gguf, replace(settings, **fewer), cache_dir=tmp_path) is not None
    # llama.cpp divides sums among threads, our kernels none.
    threads = each.profile(gguf, replace(settings, n_threads=2), cache_dir=tmp_path)
    assert (threads is not None) == (each.name == "onnx" or settings.threads == replace(settings, n_threads=2).threads)


@EACH
@pytest.mark.parametrize(("asked", "n_sizes"), [("auto", {"llama": 2, "onnx": 1}), ("f32", {"llama": 2, "onnx": 2})])
def test_a_smaller_cache_takes_less_and_there_is_an_end(
    each: Engine, gguf: ModelFile, asked: str, n_sizes: dict[str, int]
) -> None:
    settings = small(kv_k=asked, kv_v=asked)
    with each.estimator() as estimator:
        sizes = [estimator.footprint(gguf, settings).kv_cache_bytes]
        while smaller := each.smaller_caches(gguf, settings):
            assert smaller[0] != ("q4_0", "q4_0")
            settings = replace(settings, kv_k=smaller[0][0], kv_v=smaller[0][1])
            sizes.append(estimator.footprint(gguf, settings).kv_cache_bytes)
    assert len(sizes) == n_sizes[each.name]
    assert sizes == sorted(sizes, reverse=True) and len(set(sizes)) == len(sizes)


@EACH
def test_the_types_that_auto_stands_for_are_told(each: Engine, gguf: ModelFile) -> None:
    own = each.resolve(gguf, small())
    assert each.auto_kv in (f"{own.kv_k}/{own.kv_v}", own.kv_k if own.kv_k == own.kv_v else None)


@EACH
def test_variants_begin_with_what_was_asked_for_and_keep_what_is_fixed(each: Engine, gguf: ModelFile) -> None:
    settings = small(repack=True)
    found = list(each.variants(gguf, settings, frozenset()))
    assert found[0] == settings
    assert len(set(found)) == len(found)
    assert list(each.variants(gguf, settings, frozenset(("repack",)))) == [settings]
    with each.estimator() as estimator:
        sizes = [estimator.footprint(gguf, one).held_bytes for one in found]
    assert sizes == sorted(sizes, reverse=True)


@EACH
def test_a_footprint_grows_with_the_context_and_names_the_tokenizer(each: Engine, gguf: ModelFile) -> None:
    with each.estimator() as estimator:
        short, long = (estimator.footprint(gguf, replace(small(), n_ctx=n)) for n in (64, 2048))
        with_tokenizer = estimator.footprint(gguf, small(), tokenizer=True)
        rough = estimator.footprint(gguf, small(), rough=True)
    assert short.kv_cache_bytes < long.kv_cache_bytes
    assert short.weight_bytes == long.weight_bytes == rough.weight_bytes > 0
    assert with_tokenizer.vocabulary_bytes > 0


# --- opened models


@EACH
def test_what_was_handed_out_stays_until_the_opener_is_closed(each: Engine, gguf: ModelFile, tmp_path: Path) -> None:
    opener = each.opener(cache_dir=tmp_path)
    target = lone_text(opener.open(gguf, small()).pool)
    drafter = lone_text(opener.open(gguf, small().for_drafter(gguf, trees=False)).pool)
    tokenizer = opener.tokenizer(gguf)
    rows = []
    for model in (target, drafter):
        rows.append(model.decode(Tree.sequence([5]))[0].copy())
        model.close()
        with pytest.raises(Closed):
            model.decode(Tree.sequence([5, 6]))
    assert rows[0].argmax() == rows[1].argmax()
    # A tokenizer that was handed out stays, and with it what it belongs to.
    opener.release(gguf)
    assert tokenizer.tokenize("a", add_special=False)
    again = lone_text(opener.open(gguf, small()).pool)
    assert (again.decode(Tree.sequence([5]))[0] == rows[0]).all()
    again.close()
    for _ in range(2):
        opener.close()
    with pytest.raises(Closed):
        tokenizer.tokenize("a", add_special=False)


@pytest.mark.parametrize("kind", ["gguf", "graph"])
def test_a_tokenizer_belongs_to_the_file(kind: str, graph: ModelFile) -> None:
    tokenizer = open_tokenizer(graph if kind == "graph" else inspect(DRAFT))
    tokens = tokenizer.tokenize("abc", add_special=False)
    assert b"".join(map(tokenizer.token_bytes, tokens)).strip() == b"abc"
    assert tokenizer.token_cache.held_bytes > 0
    state = GuidedGrammar(GuidedVocabulary(tokenizer), gbnf_to_lark('root ::= "abc"')).start()
    forced = b"".join(map(tokenizer.token_bytes, state.forced(8)))
    assert forced == b"abc"
    tokenizer.close()
    with pytest.raises(Closed):
        tokenizer.tokenize("abc", add_special=False)


def test_there_are_no_more_threads_than_the_processor_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_spec.engines.settings.cores", lambda: (2, 4))
    asked = ((0, 0), (1, 0), (3, 512), (512, 0), (512, 1), (0, 512))
    found = [ModelSettings(n_ctx=8, n_threads=n, n_threads_batch=batch).threads for n, batch in asked]
    assert found == [(2, 2), (1, 1), (3, 4), (4, 4), (4, 1), (2, 4)]
