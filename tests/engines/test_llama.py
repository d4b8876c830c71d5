"""Laws of models on llama.cpp: what probing finds, what is saved, what stops a decode."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_files import write_gguf
from hypothesis import given, settings
from hypothesis import strategies as st
from logits_rows import next_row, some_text
from lone_text import lone_text

import edge_spec
from edge_spec.cli import main
from edge_spec.engines import probe_records
from edge_spec.engines.llama.engine import open_llama
from edge_spec.engines.llama.pool import LlamaPath
from edge_spec.engines.llama.settings import LlamaSettings, llama_settings
from edge_spec.errors import BackendError, Cancelled, Closed, ContextFull, SettingsError, StateError
from edge_spec.llama_cpp.quantize import quantize
from edge_spec.llama_cpp.weights import LlamaWeights
from edge_spec.models import inspect, resolve_family
from edge_spec.speculation.language_model import ANYWHERE
from edge_spec.speculation.pool import Path as TextPath
from edge_spec.speculation.tree import Tree

pytestmark = pytest.mark.long

Opener = Callable[..., LlamaPath]
Loader = Callable[[str], LlamaWeights]

DRAFT = resolve_family("demo").draft


@pytest.fixture(scope="module")
def remade(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The demo's target in other types of weights; K-quants mix several kinds of kernels."""
    folder = tmp_path_factory.mktemp("remade")

    def made(kind: str) -> Path:
        path = folder / f"{kind}.gguf"
        if not path.exists():
            quantize(inspect(resolve_family("demo").target), path, kind, requantize=True, n_threads=1)
        return path

    return made


@pytest.fixture
def small(open_demo: Opener) -> LlamaPath:
    """The drafter's model, which answers fast, with an empty cache."""
    model = open_demo("draft", trees=True)
    model.resume()
    model.rollback(0)
    return model


# --- probing


def test_the_demo_target_takes_drafts_and_trees_bit_for_bit(open_demo: Opener) -> None:
    model = open_demo(trees=True)
    assert isinstance(model, TextPath)
    assert model.capabilities.rollback == ANYWHERE
    assert {1, 2} <= set(model.capabilities.widths)
    assert model.capabilities.takes_trees
    assert model.capabilities.identity == "bitwise"
    assert model.capabilities.max_rows <= model.capabilities.widths[-1]


@pytest.mark.parametrize("n_ctx", [3, 30, 257])
def test_probing_finds_something_in_every_context(weights: Loader, n_ctx: int) -> None:
    pool, found = open_llama(weights("draft"), LlamaSettings(n_ctx=n_ctx, n_threads=1), file="x", cache_dir=None)
    model = lone_text(pool)
    try:
        assert model.capabilities.rollback == ANYWHERE
        assert model.n_past == 0
        assert 1 in found.seconds
        model.prefill(some_text(n_ctx))
    finally:
        model.close()


def test_what_probing_found_is_remembered(weights: Loader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def open_it(file: str = "x", **values: Any) -> Any:
        pool, found = open_llama(
            weights("draft"), LlamaSettings(**({"n_ctx": 560, "n_threads": 1} | values)), file=file, cache_dir=tmp_path
        )
        model = lone_text(pool)
        model.close()
        return found

    first = open_it()
    (memory,) = tmp_path.glob("**/*.json")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [memory]
    with monkeypatch.context() as patch:
        patch.setattr(probe_records, "probe", lambda *args, **kwargs: pytest.fail("probed again"))
        assert open_it() == first
        assert open_it(n_ctx=600) == first
    # Whatever may change the answer asks again.
    open_it(file="y")
    open_it(kv_k="f16")
    assert len(list(tmp_path.glob("**/*.json"))) == 3
    for damage in (b"", b"{", b"[]", b"\xff\xfe", b'{"capabilities": {}, "seconds": {}}', memory.read_bytes()[:-7]):
        memory.write_bytes(damage)
        assert open_it().capabilities == first.capabilities
        (kept,) = json.loads(memory.read_text())["results"]
        assert kept["capabilities"]["max_rows"] == first.capabilities.max_rows


def test_a_memory_that_cannot_be_written_is_no_reason_to_fail(weights: Loader, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    pool, found = open_llama(weights("draft"), LlamaSettings(n_ctx=30, n_threads=1), file="x", cache_dir=blocked)
    model = lone_text(pool)
    model.close()
    assert found.capabilities.rollback == ANYWHERE


@pytest.mark.parametrize("n_ctx", [300, 640])
def test_a_kernel_that_treats_a_single_row_differently_is_padded(open_demo: Opener, n_ctx: int) -> None:
    # llama.cpp splits a single row's attention among threads: with one of them there is nothing to split.
    model = open_demo("draft", n_ctx=n_ctx, kv_k="f16", n_threads=2)
    if not model.capabilities.widths or 1 in model.capabilities.widths:
        pytest.skip("on this device rows do not depend on the width with 16-bit keys")
    assert model.capabilities.padded(1) > 1
    text = some_text(n_ctx)
    for depth in (20, 255, 256, 270, 520):
        if depth + 8 > n_ctx:
            continue
        model.rollback(0)
        model.prefill(text[:depth])
        together = model.decode(Tree.sequence(text[depth : depth + 6])).copy()
        model.rollback(depth)
        for place in range(6):
            assert np.array_equal(model.decode(Tree.sequence([text[depth + place]]))[0], together[place])
            model.keep([0])


# --- errors


def test_a_full_context_says_so_and_commits_nothing(open_demo: Opener) -> None:
    model = open_demo("draft", n_ctx=30)
    model.rollback(0)
    with pytest.raises(ContextFull) as caught:
        model.prefill(some_text(30 + model.settings.max_rows + 1))
    assert caught.value.n_past == 0
    assert caught.value.n_ctx == 30
    assert model.n_past == 0
    model.prefill(some_text(30))
    with pytest.raises(ContextFull):
        model.prefill(some_text(model.settings.max_rows + 1))
    model.decode(Tree.sequence(some_text(model.settings.max_rows)))
    model.rollback(0)


def test_too_many_rows_or_a_tree_that_is_not_grown_are_refused(small: LlamaPath) -> None:
    with pytest.raises(ValueError, match="rows in one decode"):
        small.decode(Tree.sequence(some_text(small.settings.max_rows + 1)))
    small.decode(Tree.sequence([300, 301]))
    with pytest.raises(ValueError, match="only be grown"):
        small.decode(Tree.sequence([300, 302, 303]))
    with pytest.raises(ValueError, match="not a path"):
        small.keep([1])


@pytest.mark.parametrize(
    "wrong",
    [
        {"n_ctx": 0},
        {"n_threads": -1},
        {"n_threads": 513},
        {"kv_k": "q3"},
        {"max_rows": 65},
        {"prefill_chunk": 8},
        {"kv_v": "q8_0", "flash_attention": False},
    ],
    ids=str,
)
def test_settings_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError):
        LlamaSettings(**({"n_ctx": 64} | wrong))


def test_a_cache_type_that_does_not_fit_the_model_is_an_error_of_ours(weights: Loader) -> None:
    """The drafter's heads are no multiple of a block of this type, or llama.cpp takes it: no abort, either way."""
    settings = LlamaSettings(n_ctx=30, n_threads=1, kv_k="q5_1", kv_v="q4_0")
    try:
        pool, _ = open_llama(weights("draft"), settings, file="x", cache_dir=None)
        model = lone_text(pool)
    except BackendError as error:
        assert "drafter" in str(error)
    else:
        model.prefill(some_text(5))
        assert np.isfinite(next_row(model)).all()
        model.close()


def test_after_close_nothing_works(open_demo: Opener) -> None:
    model = open_demo("draft", fresh=True, n_ctx=30)
    model.close()
    model.close()
    for use in (
        lambda: model.prefill([300]),
        lambda: model.decode(Tree.sequence([300])),
        model.save,
        lambda: model.rollback(0),
    ):
        with pytest.raises(Closed):
            use()


# --- cancelling


def test_cancelling_from_another_thread_stops_a_long_prefill(open_demo: Opener) -> None:
    model = open_demo(n_ctx=4096, prefill_chunk=4096)
    text = some_text(4000)
    model.rollback(0)
    model.prefill(text[:20])
    before = next_row(model)
    started = threading.Event()

    def cancel() -> None:
        started.wait()
        time.sleep(0.1)
        model.cancel()

    other = threading.Thread(target=cancel)
    other.start()
    started.set()
    with pytest.raises(Cancelled):
        model.prefill(text[20:])
    other.join()
    # All of the text is one chunk: nothing of it is committed, so llama.cpp stopped inside it.
    assert model.n_past == 20
    assert np.array_equal(next_row(model), before)


def test_a_cancel_that_came_early_stops_the_next_decode_only(small: LlamaPath) -> None:
    small.prefill(some_text(9))
    small.decode(Tree.sequence([300, 301]))
    small.cancel()
    with pytest.raises(Cancelled):
        small.decode(Tree.sequence([300, 301, 302]))
    assert small.n_past == 9
    before = next_row(small)
    small.cancel()
    small.resume()
    assert np.array_equal(next_row(small), before)


# --- saving and restoring


@given(st.integers(1, 60), st.booleans())
@settings(max_examples=15)
def test_saving_and_restoring_gives_the_same_rows(open_demo: Opener, n: int, pending: bool) -> None:
    one, other = open_demo("draft", trees=True), open_demo("draft")
    one.rollback(0)
    one.prefill(some_text(n, seed=n))
    if pending:
        one.decode(Tree((400, 401, 402), (-1, 0, 0)))
    state = one.save()
    before = next_row(one)
    for model in (one, other):
        model.rollback(0)
        model.prefill(some_text(n + 3, seed=1))
        model.restore(state)
        assert model.n_past == n
        assert np.array_equal(next_row(model), before)


@given(st.data())
@settings(max_examples=60)
def test_damaged_state_is_refused_and_leaves_the_model_usable(open_demo: Opener, data: st.DataObject) -> None:
    model = open_demo("draft")
    model.rollback(0)
    model.prefill(some_text(6))
    before = next_row(model)
    state = bytearray(model.save())
    # The envelope is short and the body long: damage both.
    place = data.draw(st.one_of(st.integers(0, 80), st.integers(0, len(state) - 1)))
    if data.draw(st.booleans()):
        state[place] ^= data.draw(st.integers(1, 255))
    else:
        del state[place:]
    with pytest.raises(StateError) as caught:
        model.restore(bytes(state))
    assert caught.value.hint
    assert model.n_past == 0
    model.prefill(some_text(6))
    assert np.array_equal(next_row(model), before)


def test_state_of_another_profile_is_refused(open_demo: Opener) -> None:
    models = [open_demo("draft"), open_demo("intermediate", trees=True), open_demo("draft", n_ctx=30)]
    for model in models:
        model.rollback(0)
        model.prefill(some_text(5))
    states = [model.save() for model in models]
    for mine, model in enumerate(models):
        for theirs, state in enumerate(states):
            if mine != theirs:
                with pytest.raises(StateError, match="profile"):
                    model.restore(state)


# --- kinds of weights that mix, and kinds of models


KINDS = ("Q4_0", "Q3_K_M", "Q4_K_M", "F16")
CACHES: tuple[dict[str, Any], ...] = (
    {},
    {"kv_k": "f16"},
    {"flash_attention": False},
    {"flash_attention": False, "n_ctx": 240},
)
MIXED = [
    # Each kind of weights, and each kind of cache.
    pytest.param(kind, values, marks=() if kind == "Q4_K_M" or not values else pytest.mark.slow, id=f"{kind}-{values}")
    for kind in KINDS
    for values in CACHES
]


@pytest.mark.parametrize(("kind", "values"), MIXED)
def test_bitwise_holds_for_kinds_of_weights_that_mix(
    kind: str, values: dict[str, Any], remade: Callable[[str], Path], probe_cache: Path
) -> None:
    """Single rows and rows in fours come from kernels that agree on most rows, and not on all.

    Log probabilities show what tokens hide.
    """
    texts = {}
    for mode in ("off", "ngram", "sequence", "tree", "auto"):
        given = {"n_ctx": 200, "n_threads": 1, "engine": "llama", "cache_dir": probe_cache, **values}
        with edge_spec.load(remade(kind), draft=DRAFT, speculation=mode, **given) as model:
            target = model.followed["target"].model
            assert target.capabilities.widths[:1] in ((1,), (2,))
            replies = [
                model.generate(
                    "One day a dog", temperature=temperature, seed=seed, max_tokens=150, ignore_eos=True, logprobs=1
                )
                for temperature, seed in ((0, 0), (1, 0), (1, 1))
            ]
            texts[mode] = [[(each.id, each.logprob) for each in reply.events()] for reply in replies]
            assert model.identity == "bitwise"
            assert target.capabilities.takes_trees == (mode == "tree" and values.get("flash_attention", True))
    assert [len(text) for text in texts["off"]] == [150] * 3
    assert all(text == texts["off"] for text in texts.values())


@pytest.mark.parametrize("kind", ["F16", "BF16"])
def test_a_prompt_of_one_token_leaves_the_cell_of_a_row(kind: str, remade: Callable[[str], Path]) -> None:
    loaded = LlamaWeights(remade(kind))
    pool, _ = open_llama(loaded, LlamaSettings(n_ctx=64, n_threads=1), file=kind, cache_dir=None)
    model = lone_text(pool)
    try:
        text = some_text(20)
        states = []
        for read in (model.prefill, lambda tokens: (model.decode(Tree.sequence(tokens)), model.keep([0]))):
            model.rollback(0)
            model.prefill(text[:10])
            for token in text[10:]:
                read([token])
            assert model.n_past == len(text)
            states.append((model.save(), next_row(model).tobytes()))
        assert states[0] == states[1]
    finally:
        model.close()
        loaded.close()


@pytest.mark.parametrize("max_rows", [1, 2, 3])
def test_a_model_is_loaded_with_few_rows(max_rows: int) -> None:
    with edge_spec.load("demo", engine="llama", n_ctx=64, n_threads=1, max_rows=max_rows) as model:
        assert model.followed["target"].model.capabilities.max_rows == max_rows
        assert model.generate("A dog", max_tokens=4, temperature=0, ignore_eos=True).read()


def test_a_cache_of_keys_and_values_together_has_one_type() -> None:
    file = replace(inspect(DRAFT), latent_attention=True)

    def kinds(**values: Any) -> tuple[str, str]:
        found = llama_settings(file, LlamaSettings(n_ctx=64, **values))
        return found.kv_k, found.kv_v

    assert kinds() == ("q8_0", "q8_0")
    assert kinds(flash_attention=False) == ("f16", "f16")
    assert kinds(kv_k="f16") == kinds(kv_v="f16") == ("f16", "f16")
    with pytest.raises(SettingsError, match=r"'f16'.*'q8_0'.*together"):
        kinds(kv_k="q8_0", kv_v="f16")


@pytest.mark.parametrize("architecture", ["dream", "llada", "llada-moe", "rnd1"])
def test_a_diffusion_model_is_refused_by_name(
    architecture: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(write_gguf(tmp_path / "model.gguf", architecture))
    verbs = (("run", path, "-p", "A"), ("chat", path), ("plan", path), ("bench", path), ("check", path), ("info", path))
    others = (
        ("quantize", path, str(tmp_path / "out.gguf"), "--type", "Q4_0"),
        ("serve", path),
        ("pair", path, "demo"),
        ("run", "demo", "--draft", path, "-p", "A"),
        ("run", path, "--engine", "onnx", "-p", "A"),
    )
    for verb in (*verbs, *others):
        with pytest.raises(SystemExit) as end:
            main([*verb])
        assert end.value.code == 1, verb
        assert f"diffusion model ({architecture})" in capsys.readouterr().err, verb
