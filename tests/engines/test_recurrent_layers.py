"""Laws of recurrent layers on our own kernels: they compute what llama.cpp and the formulas do, and go back exactly."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from compared_logits import (
    Change,
    Rows,
    by_row,
    changed,
    off_by,
    on_llama,
    on_onnx,
    rows_however_read,
    rows_of,
    set_fact,
    swapped,
)
from copied_gguf import copy_metadata
from float_networks import float_logits
from hybrid_files import HybridFiles
from hybrid_shapes import SMALL_HYBRIDS, HybridShape, write_hybrid
from hypothesis import given, settings
from hypothesis import strategies as st
from logits_rows import Fresh
from lone_text import lone_text
from modes_agree import check_modes_agree, wishes

import edge_spec
from edge_spec.engines.onnx.engine import onnx_footprint
from edge_spec.engines.onnx.kernels import available
from edge_spec.engines.onnx.opener import open_onnx
from edge_spec.engines.onnx.pool import OnnxPath
from edge_spec.engines.onnx.transcription.architecture import ARCHITECTURES as KINDS
from edge_spec.engines.onnx.transcription.architecture import Experts
from edge_spec.engines.onnx.transcription.cache import transcribe
from edge_spec.engines.settings import ModelSettings
from edge_spec.errors import BackendError, Cancelled, EdgeSpecError, StateError
from edge_spec.loading import plan
from edge_spec.models import inspect
from edge_spec.speculation.tree import Tree

pytestmark = [pytest.mark.long, pytest.mark.skipif(available() is not None, reason="the kernels were not built")]

N_VOCAB = 384
TEXT = np.random.default_rng(5).integers(3, N_VOCAB, 600).tolist()
SHORT = 68
LFM2, QWEN35 = SMALL_HYBRIDS["lfm2"], SMALL_HYBRIDS["qwen35"]
SHAPES: dict[str, HybridShape] = {
    "lfm2, 4 heads on 2": replace(LFM2, n_layers=4, attention=(1, 3)),
    "lfm2, 4 heads on 1, 5 taps": replace(LFM2, n_layers=3, n_head_kv=1, conv=5),
    "lfm2moe, 2 of 8 experts": replace(LFM2, architecture="lfm2moe", n_layers=3, attention=(1,), experts=(8, 2, 96)),
    "qwen35, 2 keys to 4 values, 4 heads on 2": replace(QWEN35, n_layers=4, state=64, attention=(1, 3)),
    "qwen35moe, 2 of 8 experts": replace(
        QWEN35, architecture="qwen35moe", n_layers=2, state=64, attention=(1,), experts=(8, 2, 96)
    ),
    "qwen35, as many keys as values, 4 heads on 1": replace(QWEN35, n_layers=4, n_head_kv=1, attention=(3,)),
}
ARCHITECTURES = ("lfm2", "qwen35")
BY_ARCHITECTURE = {"lfm2": "lfm2, 4 heads on 2", "qwen35": "qwen35, 2 keys to 4 values, 4 heads on 2"}


def slower(rates: Rows) -> Rows:
    """Every other head remembers for long."""
    rates[::2] *= 0.02
    return rates


def written(path: Path, name: str, kind: str = "F32", **changes: Any) -> Path:
    return changed(write_hybrid(path, replace(SHAPES[name], **changes), kind, seed=1), {"ssm_a": slower})


@pytest.fixture(scope="module")
def formulas(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Rows]:
    """Rows of a short text as the formulas have them."""
    found: dict[str, Rows] = {}

    def of(name: str) -> Rows:
        if name not in found:
            path = written(tmp_path_factory.mktemp("right") / "model.gguf", name)
            found[name] = float_logits(path, TEXT[:SHORT])[4:]
        return found[name]

    return of


# --- the same logits


@pytest.mark.parametrize("name", SHAPES)
def test_logits_are_those_of_llama_cpp_and_of_the_formulas(tmp_path: Path, name: str) -> None:
    path = written(tmp_path / "model.gguf", name)
    model = on_onnx(path, tmp_path / "cache")

    def look(ours: Rows) -> None:
        """As far as rows are kept, a text goes back to any token, and on from there."""
        model.rollback(597)
        assert model.n_past == 597
        assert np.array_equal(rows_of(model, TEXT, [2], start=597), ours[593:])

    ours = rows_however_read(model, TEXT, look)
    model.close()
    assert by_row(ours, float_logits(path, TEXT)[4:]).max() <= 3e-5
    assert by_row(ours, on_llama(path, TEXT)).max() <= 1e-4


@pytest.mark.parametrize("name", BY_ARCHITECTURE.values())
@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0"])
def test_quantized_layers_are_no_further_from_the_formulas_than_those_of_llama_cpp(
    tmp_path: Path, name: str, kind: str
) -> None:
    path, text = written(tmp_path / "model.gguf", name, kind), TEXT[:300]
    model = on_onnx(path, tmp_path / "cache")
    ours = rows_of(model, text, [8])
    model.close()
    off = off_by(path, text, ours, float_logits(path, text)[4:])
    assert 0 < off[0] <= 1.3 * min(off[1:])


def fused(source: Path, path: Path) -> Path:
    """Write a model again with gate and up of all experts as one tensor."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(path, reader.fields["general.architecture"].contents())
    copy_metadata(reader, writer, leave_out=("GGUF.",))
    found = {tensor.name: tensor for tensor in reader.tensors}
    for name, tensor in found.items():
        data = tensor.data
        if name.endswith("ffn_gate_exps.weight"):
            data = np.concatenate([data, found[name.replace("gate", "up")].data], axis=1)
        if not name.endswith("ffn_up_exps.weight"):
            writer.add_tensor(name.replace("gate_exps", "gate_up_exps"), data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("kind", ["F32", "Q4_0"])
def test_experts_whose_gates_lie_beside_what_they_gate_are_the_same_network(tmp_path: Path, kind: str) -> None:
    name = "qwen35moe, 2 of 8 experts"
    # Not a whole number of groups of outputs: what is stored of each expert is padded.
    apart = written(tmp_path / "apart.gguf", name, kind, experts=(8, 2, 96 + 8 * (kind == "F32")))
    together = fused(apart, tmp_path / "together.gguf")
    rows, stored = [], []
    for path in (apart, together):
        source = transcribe(inspect(path), tmp_path / "cache")
        stored.append((source.folder / "weights.bin").read_bytes())
        model = on_onnx(path, tmp_path / "cache")
        rows.append(rows_of(model, TEXT[:SHORT], [8]))
        model.close()
    assert stored[0] == stored[1]
    assert np.array_equal(*rows)
    off = by_row(rows[1], on_llama(together, TEXT[:SHORT]))
    # What is rounded to 8 bits lets a few rows choose another expert.
    assert off.max() <= 1e-4 if kind == "F32" else np.median(off) <= 0.05
    planned, expected = (
        onnx_footprint(inspect(path), ModelSettings(n_ctx=64, n_threads=1)) for path in (together, apart)
    )
    # Each stored matrix has a header.
    assert expected.expert_bytes - planned.expert_bytes == 64 * SHAPES[name].n_layers
    assert replace(planned, expert_bytes=expected.expert_bytes) == expected


def test_reading_with_layers_before_experts_takes_what_it_takes_without_experts(tmp_path: Path) -> None:
    whole, experts = (
        onnx_footprint(inspect(written(tmp_path / f"{n}.gguf", name, n_ff=2048)), ModelSettings(n_ctx=600, n_threads=1))
        for n, name in enumerate(("lfm2, 4 heads on 2", "lfm2moe, 2 of 8 experts"))
    )
    assert experts.reading_bytes == whole.reading_bytes


# --- every setting matters


def heads_of(name: str, n_heads: int) -> dict[str, Change]:
    """Parts of a tensor's rows change places."""
    return {name: lambda x: np.roll(x.reshape(n_heads, -1, *x.shape[1:]), 1, axis=0).reshape(x.shape)}


def thirds(x: Rows) -> Rows:
    """What gates goes in, and what goes in gates the output."""
    b, c, inner = np.split(x, 3)
    return np.concatenate([c, b, inner])


LFM, QWEN = BY_ARCHITECTURE.values()
MUTATIONS: dict[str, tuple[str, dict[str, Change], dict[str, float]]] = {
    "taps from the other end": (LFM, {"shortconv.conv.weight": lambda x: x[:, ::-1]}, {}),
    "channels of the convolution": (LFM, {"shortconv.conv.weight": lambda x: x[::-1]}, {}),
    "gates change places": (LFM, {"shortconv.in_proj.weight": thirds}, {}),
    "LFM2's queries without a norm": (LFM, {"attn_q_norm.weight": lambda x: 0 * x + 1}, {}),
    "LFM2's last norm": (LFM, {"token_embd_norm.weight": lambda x: x[::-1]}, {}),
    "LFM2's positions": (LFM, {}, {"lfm2.rope.freq_base": 1e4}),
    "LFM2's epsilon": (LFM, {}, {"lfm2.attention.layer_norm_rms_epsilon": 1e-2}),
    "experts' preferences": ("lfm2moe, 2 of 8 experts", {"exp_probs_b.bias": lambda x: x[::-1]}, {}),
    "layers before experts": ("lfm2moe, 2 of 8 experts", {"0.ffn_up.weight": lambda x: x[::-1]}, {}),
    "Qwen3.5's shared expert": ("qwen35moe, 2 of 8 experts", {"ffn_gate_inp_shexp.weight": lambda x: x[::-1]}, {}),
    "taps of a delta net": (QWEN, {"ssm_conv1d.weight": lambda x: x[:, ::-1]}, {}),
    "queries for keys": (QWEN, heads_of("0.attn_qkv.weight", 8), {}),
    "heads of values": (QWEN, {"0.attn_qkv.weight": lambda x: np.concatenate([x[:256], np.roll(x[256:], 64, 0)])}, {}),
    "pairs of values to a key": (
        QWEN,
        {
            "0.attn_qkv.weight": lambda x: np.concatenate(
                [x[:256], *(x[256 + 64 * i : 320 + 64 * i] for i in (0, 2, 1, 3))]
            )
        },
        {},
    ),
    "gates of outputs": (QWEN, heads_of("attn_gate.weight", 4), {}),
    "decays": (QWEN, {"ssm_a": lambda x: x / 2}, {}),
    "decays of heads": (QWEN, {"ssm_a": lambda x: x[::-1]}, {}),
    "steps": (QWEN, {"ssm_dt.bias": lambda x: 0 * x}, {}),
    "alpha of heads": (QWEN, {"ssm_alpha.weight": lambda x: x[::-1]}, {}),
    "beta of heads": (QWEN, {"ssm_beta.weight": lambda x: x[::-1]}, {}),
    "the norm of outputs": (QWEN, {"ssm_norm.weight": lambda x: x[::-1]}, {}),
    "attention's gates for queries": (QWEN, heads_of("attn_q.weight", 8), {}),
    "keys without a norm": (QWEN, {"attn_k_norm.weight": lambda x: 0 * x + 1}, {}),
    "the norm before the feed-forward network": (QWEN, {"post_attention_norm.weight": lambda x: x[::-1]}, {}),
    "numbers that are turned": (QWEN, {}, {"qwen35.rope.dimension_count": 8}),
    "fewer experts of LFM2": ("lfm2moe, 2 of 8 experts", {}, {"lfm2moe.expert_used_count": 1}),
    "fewer experts of Qwen3.5": ("qwen35moe, 2 of 8 experts", {}, {"qwen35moe.expert_used_count": 1}),
    "Qwen3.5's positions": (QWEN, {}, {"qwen35.rope.freq_base": 1e4}),
    "sections": (QWEN, {}, {"qwen35.rope.dimension_sections": 1}),
    "the epsilon of a delta net": (QWEN, {}, {"qwen35.attention.layer_norm_rms_epsilon": 1e-2}),
}
"""What is changed, of which models: tensors, and numbers of the metadata."""


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_changed_setting_would_be_seen(formulas: Callable[[str], Rows], tmp_path: Path, mutation: str) -> None:
    """What the comparison of logits is worth: it fails with each of these."""
    name, tensors, facts = MUTATIONS[mutation]
    wrong = changed(written(tmp_path / "wrong.gguf", name), tensors)
    for fact, value in facts.items():
        set_fact(wrong, fact, value)
    model = on_onnx(wrong, tmp_path / "cache")
    ours = rows_of(model, TEXT[:SHORT], [8])
    model.close()
    assert by_row(ours, formulas(name)).max() > 1e-3
    # With the same change the formulas agree: it is one that a file can have.
    assert by_row(ours, float_logits(wrong, TEXT[:SHORT])[4:]).max() <= 1e-4


SWAPS: dict[str, tuple[str, str, str]] = {
    "LFM2's norms": (LFM, "attn_norm.weight", "ffn_norm.weight"),
    "LFM2's norms of queries and keys": (LFM, "attn_q_norm.weight", "attn_k_norm.weight"),
    "keys and values": (LFM, "attn_k.weight", "attn_v.weight"),
    "gate and up": (LFM, "ffn_gate.weight", "ffn_up.weight"),
    "convolutions of two layers": (LFM, "0.shortconv.conv.weight", "2.shortconv.conv.weight"),
    "outputs of two layers": (LFM, "0.shortconv.out_proj.weight", "2.shortconv.out_proj.weight"),
    "gate and up of experts": ("lfm2moe, 2 of 8 experts", "ffn_gate_exps.weight", "ffn_up_exps.weight"),
    "alpha and beta": (QWEN, "ssm_alpha.weight", "ssm_beta.weight"),
    "steps and rates": (QWEN, "ssm_dt.bias", "ssm_a"),
    "outputs of two delta nets": (QWEN, "0.ssm_out.weight", "2.ssm_out.weight"),
    "taps of two delta nets": (QWEN, "0.ssm_conv1d.weight", "2.ssm_conv1d.weight"),
    "what gates two delta nets": (QWEN, "0.attn_gate.weight", "2.attn_gate.weight"),
    "Qwen3.5's norms": (QWEN, "attn_norm.weight", "post_attention_norm.weight"),
    "Qwen3.5's norms of queries and keys": (QWEN, "attn_q_norm.weight", "attn_k_norm.weight"),
}
"""Tensors of one shape that change places."""


@pytest.mark.parametrize("swap", SWAPS)
def test_tensors_that_change_places_would_be_seen(formulas: Callable[[str], Rows], tmp_path: Path, swap: str) -> None:
    name, one, other = SWAPS[swap]
    model = on_onnx(swapped(written(tmp_path / "wrong.gguf", name), {one: other}), tmp_path / "cache")
    assert np.nanmax(by_row(rows_of(model, TEXT[:SHORT], [8]), formulas(name))) > 1e-3
    model.close()


@pytest.mark.parametrize(
    ("name", "change"),
    [
        (LFM, {"head_norms": False}),
        (LFM, {"output_norm": "output_norm"}),
        (LFM, {"interleaved": True}),
        (LFM, {"gelu": True}),
        ("lfm2moe, 2 of 8 experts", {"experts": Experts(normalized=True)}),
        ("lfm2moe, 2 of 8 experts", {"experts": Experts(preferred=True)}),
        (QWEN, {"gated_attention": False}),
        (QWEN, {"sections": False}),
        (QWEN, {"interleaved": True}),
        (QWEN, {"recurrent": "convolution"}),
        ("qwen35moe, 2 of 8 experts", {"experts": Experts(shared=True, shared_gate=True)}),
        ("qwen35moe, 2 of 8 experts", {"experts": Experts(normalized=True, shared=True)}),
        ("qwen35moe, 2 of 8 experts", {"experts": Experts(normalized=True, of_all=False, alpha=1.5, shared=True)}),
    ],
    ids=str,
)
def test_a_changed_architecture_would_be_seen(
    formulas: Callable[[str], Rows],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    change: dict[str, Any],
) -> None:
    """By other rows, or because the tensors do not fit it."""
    path, architecture = written(tmp_path / "model.gguf", name), SHAPES[name].architecture
    exact = formulas(name)
    monkeypatch.setitem(KINDS, architecture, replace(KINDS[architecture], **change))
    try:
        model = on_onnx(path, tmp_path / "cache")
    except EdgeSpecError as error:
        assert not isinstance(error, BackendError)
        return
    assert by_row(rows_of(model, TEXT[:SHORT], [8]), exact).max() > 1e-3
    model.close()


# --- going back


@pytest.fixture(scope="module")
def opened(hybrids: HybridFiles, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, OnnxPath]]:
    """A target of each architecture, with an empty cache."""
    asked = ModelSettings(n_ctx=400, n_threads=1, max_rows=6, prefill_chunk=32)
    folder = tmp_path_factory.mktemp("cache")
    models = {}
    for name in ARCHITECTURES:
        pool, _ = open_onnx(transcribe(inspect(hybrids[name]), folder), asked, file=name, cache_dir=None)
        model = lone_text(pool)
        assert isinstance(model, OnnxPath)
        models[name] = model
    yield models
    for model in models.values():
        model.close()


def test_it_verifies_sequences_of_one_text(opened: dict[str, OnnxPath]) -> None:
    for model in opened.values():
        can = model.capabilities
        assert can.identity == "bitwise"
        assert (can.rollback, can.max_rows, can.reuse_step) == (5, 6, 1)
        assert not can.takes_trees
        assert not can.can_shift
        model.rollback(0)
        with pytest.raises(ValueError, match="sequences, not trees"):
            model.decode(Tree((100, 101, 102), (-1, 0, 0)))


@pytest.mark.parametrize("name", ARCHITECTURES)
@given(st.data())
@settings(max_examples=40)
def test_rows_are_those_of_a_fresh_text_wherever_it_went_back_to(
    opened: dict[str, OnnxPath], name: str, data: st.DataObject
) -> None:
    model, text, most = opened[name], list[int](), opened[name].capabilities.max_rows
    model.rollback(0)
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 20)))
    wanted: list[tuple[list[int], Rows]] = []
    saved: tuple[bytes, list[int]] | None = None
    for _ in range(data.draw(st.integers(3, 14))):
        steps = ["decode", "decode", "grow", "prefill", "rollback", "save", "restore", "cancel"]
        step = data.draw(st.sampled_from(steps))
        if step == "prefill":
            ahead = rng.integers(3, N_VOCAB, int(rng.integers(1, 80))).tolist()
            model.prefill(ahead)
            text += ahead
        elif step in ("decode", "grow"):
            ahead = rng.integers(3, N_VOCAB, int(rng.integers(1, most + 1))).tolist()
            cut = int(rng.integers(1, len(ahead))) if step == "grow" and len(ahead) > 1 else len(ahead)
            rows = [row.copy() for row in model.decode(Tree.sequence(ahead[:cut]))]
            rows += [row.copy() for row in model.decode(Tree.sequence(ahead))] if cut < len(ahead) else []
            wanted += [(text + ahead[: n + 1], row) for n, row in enumerate(rows)]
            n_kept = int(rng.integers(0, len(ahead) + 1))
            model.keep(range(n_kept))
            text += ahead[:n_kept]
            # Rejected tokens are never a reason to go back further.
            assert model.n_past == len(text)
        elif step == "rollback":
            model.rollback(int(rng.integers(0, len(text) + 1)))
        elif step == "save":
            saved = model.save(), list(text)
        elif step == "cancel":
            # A reading that is stopped has committed what ``n_past`` tells.
            ahead = rng.integers(3, N_VOCAB, int(rng.integers(1, 80))).tolist()
            model.cancel()
            with pytest.raises(Cancelled):
                model.prefill(ahead)
            text += ahead
        elif saved is not None:
            model.restore(saved[0])
            text = list(saved[1])
        text = text[: model.n_past]
        if len(text) > 250:
            break
    fresh = Fresh(model)
    for read, row in wanted:
        assert np.array_equal(fresh.after(read), row)


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("seed", range(6))
def test_every_path_has_the_rows_of_a_text_alone(opened: dict[str, OnnxPath], name: str, seed: int) -> None:
    """Drafts, reading, going back, forks, closing, saving and stopping, of several paths of one pool."""
    root, chance = opened[name], random.Random(seed)
    root.rollback(0)
    pool, most = root.pool, root.capabilities.max_rows
    pool.resize(1600)
    paths, texts = [root], [list[int]()]
    wanted: list[tuple[list[int], Rows]] = []
    for _ in range(60):
        some = chance.sample(range(len(paths)), chance.randrange(1, min(3, len(paths)) + 1))
        one, act = some[0], chance.choice(["decode"] * 4 + ["prefill", "rollback", "fork", "close", "save", "cancel"])
        path = paths[one]
        if act == "decode":
            drafts = [[chance.randrange(3, N_VOCAB) for _ in range(chance.randrange(1, most // 3 + 1))] for _ in some]
            found = pool.decode([(paths[index], Tree.sequence(each)) for index, each in zip(some, drafts, strict=True)])
            for index, draft, rows in zip(some, drafts, found, strict=True):
                wanted += [([*texts[index], *draft[: n + 1]], row.copy()) for n, row in enumerate(rows)]
            for index, draft in zip(some, drafts, strict=True):
                n = chance.randrange(len(draft) + 1)
                paths[index].keep(range(n))
                texts[index] += draft[:n]
        elif act in ("prefill", "cancel"):
            read = {index: [chance.randrange(3, N_VOCAB) for _ in range(chance.randrange(40))] for index in some}
            if act == "cancel" and any(read.values()):
                root.cancel()
            with pytest.raises(Cancelled) if act == "cancel" and any(read.values()) else nullcontext():
                pool.prefill([(paths[index], each) for index, each in read.items()])
            for index, each in read.items():
                texts[index] += each
        elif act == "rollback":
            path.rollback(chance.randrange(max(0, path.n_past - 20), path.n_past + 1))
        elif act == "fork" and len(paths) < 5:
            paths.append(path.fork(chance.randrange(max(0, path.n_past - 8), path.n_past + 1)))
            texts.append(list(texts[one]))
        elif act == "close" and one:
            path.close()
            del paths[one], texts[one]
        elif act == "save":
            state = path.save()
            path.restore(state)
        for index, each in enumerate(paths):
            del texts[index][each.n_past :]
            if len(texts[index]) > 250:
                each.rollback(0)
                texts[index].clear()
        assert pool.session.states is not None
        assert pool.session.states.n_held == sum(each.n_past > 0 for each in paths)
    for each in paths:
        each.rollback(0)
    fresh = Fresh(root)
    for read, row in wanted:
        assert np.array_equal(fresh.after(read), row)
    for each in paths[1:]:
        each.close()
    pool.resize(400)


def test_forks_at_the_end_of_a_prompt_share_one_copy_of_its_state(opened: dict[str, OnnxPath]) -> None:
    for root in opened.values():
        root.rollback(0)
        root.prefill(TEXT[:60])
        forks = [root.fork(60) for _ in range(3)]
        assert [fork.n_past for fork in forks] == [60] * 3
        assert len({id(copy) for each in (root, *forks) for copy in each.states._copies.values()}) == 1
        rows = root.pool.decode([(each, Tree.sequence([TEXT[60]])) for each in (root, *forks)])
        assert len({row.tobytes() for row in rows}) == 1
        # Past the place where it can go back to by tokens, a fork begins there.
        for n in range(61, 75):
            root.keep([0])
            root.decode(Tree.sequence([TEXT[n]]))
        late = root.fork(64)
        assert late.n_past == 60
        assert np.array_equal(late.decode(Tree.sequence([TEXT[60]]))[0], rows[0][0])
        for each in (late, *forks):
            each.close()
        with pytest.raises(ValueError, match="states still know"):
            root.shift(2, 3)


def test_a_text_goes_back_to_where_its_prompt_ended_and_where_it_began(opened: dict[str, OnnxPath]) -> None:
    for model in opened.values():
        model.rollback(0)
        model.prefill(list(range(100, 150)))
        for token in range(10):
            model.decode(Tree.sequence([200 + token]))
            model.keep([0])
        model.prefill(list(range(150, 220)))
        for token in range(10):
            model.decode(Tree.sequence([220 + token]))
            model.keep([0])
        places = []
        for wanted in (140, 139, 138, 130, 100, 60, 40):
            model.rollback(min(wanted, model.n_past))
            places.append(model.n_past)
        assert places == [140, 139, 130, 130, 60, 60, 0]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_decode_that_fails_in_the_middle_loses_nothing(opened: dict[str, OnnxPath], name: str) -> None:
    """Layers before the failure have taken in what the others have not."""
    model = opened[name]
    fresh = Fresh(model)
    text = list(range(100, 140))
    expected = fresh.after([*text, 200, 201])
    for n_kept in (1, 3, 6):
        model.rollback(0)
        model.prefill(text[: 40 - n_kept])
        model.decode(Tree.sequence(text[40 - n_kept :]))
        model.keep(range(n_kept))
        states = model.states
        assert states is not None and states._layers is not None
        # As if the run had ended before the last layer with a state.
        last = states._layers.whole[-1]
        before = last.copy()
        model.decode(Tree.sequence([300]))
        last[...] = before
        model.rollback(40)
        assert model.n_past == 40
        rows = model.decode(Tree.sequence([200, 201]))
        assert np.array_equal(rows[1], expected)


def test_drafters_come_back_to_what_they_hold(hybrids: HybridFiles, tmp_path: Path) -> None:
    """However many guesses lie beyond it, in decodes of their own."""
    asked = ModelSettings(n_ctx=200, n_threads=1, max_rows=6, prefill_chunk=32, exact=False)
    for name in ARCHITECTURES:
        pool, _ = open_onnx(transcribe(inspect(hybrids[name]), tmp_path), asked, file=name, cache_dir=None)
        model = lone_text(pool)
        text = list(range(100, 150))
        fresh = Fresh(model)
        expected = fresh.after([*text, 160]).copy()
        model.rollback(0)
        model.prefill(text)
        for n_guesses in (0, 3, 30, 60):
            model.hold()
            for guess in range(n_guesses):
                model.decode(Tree.sequence([200 + guess]))
                model.keep([0])
            model.rollback(50)
            assert model.n_past == 50
            assert np.array_equal(model.decode(Tree.sequence([160]))[0], expected)
            model.rollback(50)
        model.close()


def test_states_of_another_size_are_refused(opened: dict[str, OnnxPath]) -> None:
    lfm2, qwen35 = opened.values()
    lfm2.rollback(0)
    lfm2.prefill(TEXT[:20])
    state = lfm2.save()
    from edge_spec.speculation.cache_state import pack_state, restated

    for wrong in (restated(state, profile=qwen35.profile.name), state[:-1]):
        with pytest.raises(StateError):
            qwen35.restore(wrong)
        assert qwen35.n_past == 0
    body = state[64:]
    for wrong_body in (b"", body[:-4], body + body):
        with pytest.raises(StateError):
            lfm2.restore(pack_state(wrong_body, n_past=20, profile=lfm2.profile.name))
        assert lfm2.n_past == 0


# --- the same text


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_text_is_identical_in_every_mode(hybrids: HybridFiles, tmp_path: Path, name: str) -> None:
    shape = SMALL_HYBRIDS[name]
    smaller = {
        role: write_hybrid(tmp_path / f"{role}.gguf", shape, "Q4_0", seed=1, noise=noise)
        for role, noise in (("draft", 0.06), ("intermediate", 0.03))
    }

    def look(mode: str, model: edge_spec.TextModel) -> None:
        assert model.profile.engine == "onnx"
        assert model.identity == "bitwise"
        assert (model.mode == "off") == (mode == "off")

    replies = check_modes_agree(
        ("off", "sequence", "hierarchy", "ngram", "auto"),
        wishes(("abcabc", "In the beginning there was"), 60),
        look,
        hybrids[name],
        **smaller,
        engine="onnx",
        n_ctx=128,
        cache_dir=tmp_path,
    )
    for mode in ("sequence", "hierarchy"):
        done = [reply.statistics for reply in replies[mode]]
        assert 0 < sum(each.accepted for each in done) < sum(each.drafted for each in done)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_several_replies_are_what_each_is_alone(hybrids: HybridFiles, tmp_path: Path, name: str) -> None:
    asked: dict[str, Any] = {"raw": True, "ignore_eos": True, "max_tokens": 30, "seed": 5}
    prompts = ["abc", "another one", "x" * 40]
    with edge_spec.load(hybrids[name], engine="onnx", n_ctx=128, n_threads=1, cache_dir=tmp_path) as model:
        several = model.generate_many(prompts, **asked)
        several.read()
        found = [several[index].token_ids for index in range(len(prompts))]
        alone = [model.generate(prompt, **asked) for prompt in prompts]
        for reply in alone:
            reply.read()
    assert found == [reply.token_ids for reply in alone]


@pytest.mark.parametrize("mode", ["off", "ngram", "auto", "sequence"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_answers_to_one_prompt_read_it_once_and_are_what_each_is_alone(
    hybrids: HybridFiles, tmp_path: Path, name: str, mode: str
) -> None:
    asked: dict[str, Any] = {"raw": True, "ignore_eos": True, "max_tokens": 40, "temperature": 1.0}
    drafter = {"draft": write_hybrid(tmp_path / "draft.gguf", SMALL_HYBRIDS[name], "Q4_0", seed=1, noise=0.06)}
    prompt = "In the beginning there was a prompt of some tokens, ab ab ab"
    with edge_spec.load(
        hybrids[name],
        engine="onnx",
        speculation=mode,
        n_ctx=160,
        n_threads=1,
        cache_dir=tmp_path,
        **drafter if mode == "sequence" else {},
    ) as model:
        pool = model.followed["target"].model.pool
        pools = [each.model.pool for each in model.followed.values()]
        n_planned = [each.n_cells for each in pools]
        replies = model.generate(prompt, n=5, seed=3, **asked)
        replies.read()
        found = [reply.token_ids for reply in replies.answers]
        n_prompt = len(replies.answers[0].prompt)
        assert model.rows["prompt"] < n_prompt
        text_bytes = sum(each.text_bytes for each in pools)
        further = sum((each.n_cells - n) * each.cell_bytes for each, n in zip(pools, n_planned, strict=True))
        line = next(line for line in model.ledger if (line.owner, line.name) == ("texts", "caches"))
        assert line.predicted_bytes == 4 * text_bytes + further
        assert pool.session.states.n_held == 5
        model.prefix_cache.shrink()
        assert pool.session.states.n_held <= 1
        assert ("texts", "caches") not in {(line.owner, line.name) for line in model.ledger}
    with edge_spec.load(
        hybrids[name], engine="onnx", speculation="off", n_ctx=160, n_threads=1, cache_dir=tmp_path
    ) as model:
        for attempt, tokens in enumerate(found):
            reply = model.generate(prompt, seed=3, attempt=attempt, **asked)
            reply.read()
            assert reply.token_ids == tokens
    assert len({tuple(tokens) for tokens in found}) == 5


def test_texts_wait_where_memory_has_no_room_for_their_states(hybrids: HybridFiles, tmp_path: Path) -> None:
    asked: dict[str, Any] = {"raw": True, "ignore_eos": True, "max_tokens": 30, "temperature": 1.0, "seed": 3}
    found = {}
    for room in (0, 1, 9):
        with edge_spec.load(
            hybrids["qwen35"], engine="onnx", speculation="off", n_ctx=160, n_threads=1, cache_dir=tmp_path
        ) as model:
            pool, ledger = model.followed["target"].model.pool, model.ledger
            # Cells are not what is scarce.
            pool.resize(1600)
            model.prefix_cache.changed_target()
            ledger.budget_bytes = ledger.held_bytes + ledger.reserve_bytes + room * pool.text_bytes
            replies = model.generate_many(["abc", "another one", "x" * 40], **asked)
            most = 0
            for _ in replies:
                most = max(most, pool.session.states.n_held)
            assert most == min(3, 1 + room)
            found[room] = [reply.token_ids for reply in replies.answers]
    assert found[0] == found[1] == found[9]


# --- what it takes, and what is refused


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_plan_names_states_and_what_is_kept_and_they_take_that(
    hybrids: HybridFiles, tmp_path: Path, name: str
) -> None:
    asked: dict[str, Any] = {"engine": "onnx", "n_ctx": 128, "n_threads": 1, "cache_dir": tmp_path}
    with edge_spec.load(hybrids[name], speculation="ngram", **asked) as model:
        lines = {line.name: line for line in model.ledger if line.owner == "target"}
        states = model.followed["target"].model.states
        model.generate("abc", raw=True, max_tokens=20, ignore_eos=True).read()
        copied = states.copied_bytes
    state = lines["recurrent state"]
    assert state.predicted_bytes == inspect(hybrids[name]).state_bytes == state.measured_bytes
    assert lines["snapshots for drafts"].predicted_bytes == lines["snapshots for drafts"].measured_bytes > 0
    assert 0 < copied <= lines["copies of the state"].predicted_bytes == 2 * state.predicted_bytes
    found = plan(hybrids[name], speculation="tree", draft=hybrids[name], **asked)
    assert any("this model's recurrent layers take no trees" in note for note in found.notes)


REFUSED: dict[str, tuple[str, dict[str, float], str]] = {
    "no taps": (LFM, {"lfm2.shortconv.l_cache": 0}, "l_cache"),
    "another way to weigh experts": ("lfm2moe, 2 of 8 experts", {"lfm2moe.expert_gating_func": 1}, "in the way 1"),
    "no layer with experts": (
        "lfm2moe, 2 of 8 experts",
        {"lfm2moe.leading_dense_block_count": 3},
        "no lfm2moe.leading_dense_block_count from 0 to 2",
    ),
    "2^31 taps": (LFM, {"lfm2.shortconv.l_cache": 1 << 31}, "l_cache"),
    "more taps than there are": (LFM, {"lfm2.shortconv.l_cache": 4}, "shortconv.conv.weight in the shape"),
    "keys where there are none": (LFM, {"lfm2.attention.head_count_kv": 2}, "other recurrent layers"),
    "delta heads of nothing": (QWEN, {"qwen35.ssm.state_size": 0}, "state_size"),
    "no delta heads": (QWEN, {"qwen35.ssm.time_step_rank": 0}, "time_step_rank"),
    "no keys": (QWEN, {"qwen35.ssm.group_count": 0}, "group_count"),
    "3 keys to 4 values": (QWEN, {"qwen35.ssm.group_count": 3}, "4 on 3 delta heads"),
    "delta heads of 8": (QWEN, {"qwen35.ssm.state_size": 8}, "delta heads of 8"),
    "another inner size": (QWEN, {"qwen35.ssm.inner_size": 512}, "512 in all"),
    "no convolution": (QWEN, {"qwen35.ssm.conv_kernel": 0}, "conv_kernel"),
    "other layers": (QWEN, {"qwen35.full_attention_interval": 3}, "other recurrent layers"),
    "heads of nothing": (QWEN, {"qwen35.attention.key_length": 0}, "key_length|heads"),
}
"""Numbers of the metadata that contradict the tensors, and what the refusal names."""


@pytest.mark.parametrize("case", REFUSED)
def test_what_contradicts_itself_is_refused_in_a_line(tmp_path: Path, case: str) -> None:
    name, facts, named = REFUSED[case]
    path = written(tmp_path / "model.gguf", name)
    for fact, value in facts.items():
        set_fact(path, fact, value)
    with pytest.raises(EdgeSpecError, match=named) as caught:
        transcribe(inspect(path), tmp_path / "cache")
    assert "\n" not in str(caught.value)
    assert not isinstance(caught.value, BackendError)


@pytest.mark.parametrize("lost", ["shortconv.conv.weight", "shortconv.in_proj.weight", "token_embd_norm.weight"])
def test_a_missing_tensor_is_named(tmp_path: Path, lost: str) -> None:
    check_names_missing(written(tmp_path / "model.gguf", LFM), lost, tmp_path)


@pytest.mark.parametrize("lost", ["ssm_a", "ssm_dt.bias", "ssm_conv1d.weight", "attn_gate.weight", "ssm_norm.weight"])
def test_a_missing_tensor_of_a_delta_net_is_named(tmp_path: Path, lost: str) -> None:
    check_names_missing(written(tmp_path / "model.gguf", QWEN), lost, tmp_path)


def check_names_missing(path: Path, lost: str, folder: Path) -> None:
    """Rename a tensor, and see that it is missed."""
    whole = path.read_bytes()
    path.write_bytes(whole.replace(lost.encode(), lost[:-1].encode() + b"~", 1))
    with pytest.raises(EdgeSpecError, match=r"lacks the tensor|in the shape|no place for|recurrent layers|heads"):
        transcribe(inspect(path), folder / "cache")


def test_layers_for_further_tokens_are_left_out(hybrids: HybridFiles, tmp_path: Path) -> None:
    rows = []
    for name in ("qwen35", "qwen35-mtp"):
        model = on_onnx(hybrids[name], tmp_path)
        rows.append(rows_of(model, TEXT[:40], [8]))
        model.close()
    assert np.array_equal(*rows)
