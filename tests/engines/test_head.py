"""Laws of heads on hidden states: what they compute, that the target keeps its bits, and that no token changes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize, quantize
from head_files import random_head, write_head
from lone_text import lone_text
from modes_agree import check_modes_agree, questions

import edge_spec
from edge_spec.chat.session import ChatSession
from edge_spec.engines.base import ModelSettings
from edge_spec.engines.onnx.head_model import HeadPath, HeadPool, HeadSession
from edge_spec.engines.onnx.kernels import available
from edge_spec.engines.onnx.opener import drafter_settings
from edge_spec.engines.onnx.pool import OnnxPath
from edge_spec.engines.onnx.transcription.head import HIDDEN, _tables, hidden_rows_tail, transcribe_head
from edge_spec.engines.registry import engine
from edge_spec.errors import BackendError, SettingsError, StateError, UnsupportedModel
from edge_spec.llama_cpp.quantize import quantize as write_quantized
from edge_spec.loading import possible_modes
from edge_spec.models import ModelFile, inspect, made_drafter_folder, resolve_family
from edge_spec.speculation.drafters.base import Drafter
from edge_spec.speculation.drafters.model import ModelDrafter
from edge_spec.speculation.tree import Tree

pytestmark = [pytest.mark.long, pytest.mark.skipif(available() is not None, reason="the kernels were not built")]

TARGET = inspect(resolve_family("demo").target)
LAYERS = (2, 4, 7)
WIDTH = TARGET.n_embd
TEXT = np.random.default_rng(3).integers(300, TARGET.n_vocab, 60).tolist()
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}}}


@pytest.fixture(scope="module")
def head(kept: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("head") / "head.gguf"
    write_head(path, TARGET, kept, LAYERS, seed=5)
    return path


@pytest.fixture
def pair(head: Path, probe_cache: Path) -> Iterator[tuple[OnnxPath, HeadPath]]:
    """The demo's target and a head for it, with empty caches."""
    onnx = engine("onnx")
    settings = onnx.resolve(TARGET, ModelSettings(n_ctx=200, n_threads=1, trees=True))
    opener = onnx.opener(cache_dir=probe_cache)
    target = lone_text(opener.open(TARGET, settings).pool)
    opened = lone_text(
        opener.open(inspect(head), drafter_settings(settings), target=(target.pool, TARGET)).pool, target
    )
    assert isinstance(target, OnnxPath)
    assert isinstance(opened, HeadPath)
    yield target, opened
    opened.close()
    target.close()
    opener.close()


def opened_files(head: Path, cache: Path) -> dict[str, bytes]:
    """Open a head on the demo's target, and return what is kept of it."""
    onnx = engine("onnx")
    settings = onnx.resolve(TARGET, ModelSettings(n_ctx=64, n_threads=1))
    opener = onnx.opener(cache_dir=cache)
    target = lone_text(opener.open(TARGET, settings).pool)
    lone_text(opener.open(inspect(head), drafter_settings(settings), target=(target.pool, TARGET)).pool, target).close()
    target.close()
    opener.close()
    (kept,) = (cache / "onnx").glob(f"*/head-{inspect(head).fingerprint}")
    return {path.name: path.read_bytes() for path in kept.iterdir() if path.name != "whole.json"}


def test_a_graph_is_made_once_and_again_where_it_is_damaged(
    head: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []

    def noted(file: ModelFile, target: ModelFile) -> Any:
        made.append(file.path)
        return _tables(file, target)

    monkeypatch.setattr("edge_spec.engines.onnx.transcription.head._tables", noted)
    assert engine("onnx").disk_bytes(inspect(head), cache_dir=tmp_path) > 0
    first = opened_files(head, tmp_path)
    assert sorted(first) == ["facts.json", "half.onnx", "model.onnx", "source.json", "weights.bin"]
    assert opened_files(head, tmp_path) == first and len(made) == 1
    assert engine("onnx").disk_bytes(inspect(head), cache_dir=tmp_path) == 0
    (kept,) = (tmp_path / "onnx").glob("*/head-*")
    for name, content in first.items():
        for damaged in (b"", content[:-1], content[:9] + bytes([content[9] ^ 1]) + content[10:]):
            (kept / name).write_bytes(damaged)
            assert opened_files(head, tmp_path) == first
    assert len(made) == 1 + 3 * len(first)
    assert not list((tmp_path / "onnx").glob(".part-*")), "nothing is left beside it"


def test_without_room_on_the_disk_a_head_is_kept_in_memory(
    pair: tuple[OnnxPath, HeadPath], head: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, kept = pair
    wanted = first_row(target, kept)
    full = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr("edge_spec.engines.onnx.transcription.head_files.shutil.disk_usage", lambda path: full)
    file = inspect(head)
    made = transcribe_head(file, TARGET, tmp_path)
    assert isinstance(made.graph(f16=True), bytes)
    session = HeadSession(made, drafter_settings(target.settings))
    pool = HeadPool(
        session, drafter_settings(target.settings), name="x", target=target.pool, features=kept.pool.features
    )
    assert (first_row(target, lone_text(pool, target)) == wanted).all()
    session.close()


def first_row(target: OnnxPath, head: HeadPath) -> np.ndarray:
    """The row after a text."""
    for path in (target, head):
        path.rollback(0)
    target.prefill(TEXT[:30])
    head.prefill([1, 2, 3] * 9)
    return head.decode(Tree.sequence([2]))[0].copy()


def hidden_rows(tokens: Sequence[int], cache: Path) -> np.ndarray:
    onnx = engine("onnx")
    opener = onnx.opener(cache_dir=cache)
    model: Any = lone_text(opener.open(TARGET, onnx.resolve(TARGET, ModelSettings(n_ctx=200, n_threads=1))).pool)
    rows = model.features(hidden_rows_tail(LAYERS, WIDTH), HIDDEN, 3 * WIDTH)
    model.prefill(tokens)
    found = rows[: len(tokens)].astype(np.float32)
    model.close()
    opener.close()
    return found


class Reference:
    """The head in 32-bit floats, one token after the other."""

    def __init__(self, kept: np.ndarray) -> None:
        kind = gguf.GGMLQuantizationType.Q4_0
        round_trip = lambda array: dequantize(quantize(array.astype(np.float32), kind), kind)  # noqa: E731
        weights = random_head(TARGET, 2 * WIDTH, seed=5)
        self.w = {name: round_trip(each) if each.ndim == 2 else each for name, each in weights.items()}
        table = next(t for t in gguf.GGUFReader(TARGET.path).tensors if t.name == "token_embd.weight")
        rows = round_trip(dequantize(table.data, table.tensor_type)[kept])
        self.table = np.concatenate([rows, np.zeros((1, WIDTH), np.float32)])
        self.keys: list[np.ndarray] = []
        self.values: list[np.ndarray] = []

    def __call__(self, own: int, feature: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """A token's logits, and the feature that it gives to a drafted one after it."""
        w, head = self.w, TARGET.head_dim_k
        both = np.concatenate([norm(self.table[own], w["blk.0.attn_norm"]), norm(feature, w["blk.0.attn_norm_2"])])
        q, k, v = (w[f"blk.0.attn_{name}"] @ both for name in "qkv")
        place = len(self.keys)
        self.keys.append(np.stack([turned(each, place) for each in k.reshape(-1, head)]))
        self.values.append(v.reshape(-1, head))
        keys, values, group = np.stack(self.keys), np.stack(self.values), TARGET.n_head // len(self.values[0])
        seen = []
        for number, query in enumerate(q.reshape(-1, head)):
            scores = keys[:, number // group] @ turned(query, place) / head**0.5
            weights = np.exp(scores - scores.max())
            seen.append(weights / weights.sum() @ values[:, number // group])
        x = feature + w["blk.0.attn_output"] @ np.concatenate(seen)
        y = norm(x, w["blk.0.ffn_norm"])
        gate = w["blk.0.ffn_gate"] @ y
        x = x + w["blk.0.ffn_down"] @ (gate / (1 + np.exp(-gate)) * (w["blk.0.ffn_up"] @ y))
        return self.table @ norm(x, w["output_norm"]), x


def norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return x / np.sqrt(np.mean(x * x) + 1e-5) * weight


def turned(x: np.ndarray, place: int) -> np.ndarray:
    angles = place / 10000.0 ** (np.arange(0, len(x), 2) / len(x))
    even, odd = x[0::2], x[1::2]
    both = (even * np.cos(angles) - odd * np.sin(angles), even * np.sin(angles) + odd * np.cos(angles))
    return np.stack(both, -1).reshape(-1)


def apart(found: np.ndarray, wanted: np.ndarray) -> float:
    """Return how far rows are from what they should be, in units of their spread."""
    return float(np.sqrt(np.mean((found - wanted) ** 2)) / wanted.std())


def test_a_head_computes_what_it_should_along_text_and_drafts(
    pair: tuple[OnnxPath, HeadPath], kept: np.ndarray, probe_cache: Path
) -> None:
    target, head = pair
    reference = Reference(kept)
    own = np.full(TARGET.n_vocab, len(kept))
    own[kept] = np.arange(len(kept))
    fused = hidden_rows(TEXT, probe_cache) @ reference.w["fc"].T
    target.prefill(TEXT[:-1])
    head.prefill(own[TEXT[:-4]].tolist())
    for token, feature in zip(TEXT[:-4], [np.zeros(WIDTH), *fused], strict=False):
        reference(own[token], feature)
    wanted, given = [], np.zeros(WIDTH)
    for token, feature in zip(TEXT[-4:], fused[-5:], strict=False):
        row, given = reference(own[token], feature)
        wanted.append(row)
    tree = Tree.sequence(own[TEXT[-4:]].tolist())
    assert apart(head.decode(tree), np.stack(wanted)) < 0.05
    for token in (3, 1, 4):
        tree = Tree((*tree.tokens, token), (*tree.parents, len(tree) - 1))
        row, given = reference(token, given)
        assert apart(head.decode(tree), row[None]) < 0.1


def test_a_tree_of_drafts_is_computed_like_its_paths(pair: tuple[OnnxPath, HeadPath]) -> None:
    target, head = pair
    target.prefill(TEXT[:-1])
    head.prefill([1, 2, 3] * 19)
    rows = {}
    for path in ((5, 6, 7), (5, 9)):
        tree = Tree.sequence([0, 1, 2])
        head.decode(tree)
        for place, token in enumerate(path):
            tree = Tree((*tree.tokens, token), (*tree.parents, len(tree) - 1))
            rows[path[: place + 1]] = head.decode(tree)[-1].copy()
        head.rollback(57)
    tree = Tree.sequence([0, 1, 2])
    head.decode(tree)
    tree = Tree((*tree.tokens, 5), (*tree.parents, 2))
    head.decode(tree)
    tree = Tree((*tree.tokens, 6, 9), (*tree.parents, 3, 3))
    found = dict(zip([(5, 6), (5, 9)], head.decode(tree).copy(), strict=True))
    tree = Tree((*tree.tokens, 7), (*tree.parents, 4))
    found[5, 6, 7] = head.decode(tree)[-1]
    for path, row in found.items():
        assert (row == rows[path]).all(), path


def test_only_tokens_of_the_text_stay_in_its_cache(pair: tuple[OnnxPath, HeadPath]) -> None:
    target, head = pair
    target.prefill(TEXT[:20])
    head.prefill([1] * 18)
    tree = Tree.sequence([1, 2, 3])
    head.decode(tree)
    tree = Tree((*tree.tokens, 4), (*tree.parents, 2))
    head.decode(tree)
    head.keep([0, 1, 2, 3])
    assert head.n_past == 21


def test_a_target_keeps_its_bits_and_its_profile(pair: tuple[OnnxPath, HeadPath], probe_cache: Path) -> None:
    target, _ = pair
    onnx = engine("onnx")
    opener = onnx.opener(cache_dir=probe_cache)
    alone = lone_text(opener.open(TARGET, target.settings).pool)
    assert alone.profile == target.profile
    for model in (alone, target):
        model.prefill(TEXT[:40])
    tree = Tree((1, 2, 3, 4, 5), (-1, 0, 0, 1, 2))
    assert (alone.decode(tree) == target.decode(tree)).all()
    assert alone.save() == target.save()
    alone.close()
    opener.close()


def test_features_follow_the_text(pair: tuple[OnnxPath, HeadPath], probe_cache: Path) -> None:
    """However the text came about, what the head reads of a token is what a fresh run computes."""
    target, head = pair
    features = head._features
    target.prefill(TEXT[:30])
    target.decode(Tree((9, TEXT[30], 8, TEXT[31]), (-1, -1, 0, 1)))
    target.keep([1, 3])
    target.decode(Tree.sequence(TEXT[32:36]))
    target.keep([0, 1])
    target.rollback(33)
    target.decode(Tree.sequence(TEXT[33:36]))
    target.keep([0, 1, 2])
    found = features[:36].copy()
    target.rollback(0)
    target.prefill(TEXT[:36])
    assert (features[:36] == found).all()
    target.shift(5, 15)
    assert (features[:26] == np.concatenate([found[:5], found[15:]])).all()


def test_a_head_is_saved_and_restored_with_what_it_has_yet_to_read(
    pair: tuple[OnnxPath, HeadPath],
) -> None:
    target, head = pair
    target.prefill(TEXT[:40])
    head.prefill([1] * 30)
    states = target.save(), head.save()
    wanted = head.decode(Tree.sequence([2] * 11)).copy()
    for model in (target, head):
        model.rollback(0)
        model.prefill([3] * 10)
    target.restore(states[0])
    head.restore(states[1])
    assert (target.n_past, head.n_past) == (40, 30)
    assert (head.decode(Tree.sequence([2] * 11)) == wanted).all()
    scales = 8 + 40 * WIDTH
    not_numbers = states[1][:scales] + b"\xff" * 40 + states[1][scales + 40 :]
    for damaged in (b"", states[1][:10], states[1][:-1], states[1][:40], not_numbers, states[0]):
        with pytest.raises(StateError):
            head.restore(damaged)
        assert head.n_past == 0


def test_what_is_saved_of_a_head_before_anything_is_read_is_restored(pair: tuple[OnnxPath, HeadPath]) -> None:
    target, head = pair
    for model in (target, head):
        model.rollback(0)
    state = head.save()
    target.prefill(TEXT[:40])
    head.prefill([1] * 30)
    target.rollback(0)
    head.restore(state)
    assert (head.n_past, head.save()) == (0, state)


def test_a_tail_that_cannot_be_loaded_leaves_the_target_as_it_was(pair: tuple[OnnxPath, HeadPath]) -> None:
    target, _ = pair
    target.prefill(TEXT[:20])
    row = target.decode(Tree.sequence([7])).copy()
    with pytest.raises(BackendError):
        target.features(hidden_rows_tail((2, 4, 99), WIDTH), HIDDEN, 3 * WIDTH)
    target.rollback(20)
    assert (target.decode(Tree.sequence([7])) == row).all()


def test_a_head_that_is_closed_takes_nothing_of_its_target(
    pair: tuple[OnnxPath, HeadPath],
) -> None:
    target, head = pair
    target.prefill(TEXT[:20])
    row = target.decode(Tree.sequence([7])).copy()
    head.close()
    head.close()
    assert target.pool.session.features is None
    target.rollback(20)
    assert (target.decode(Tree.sequence([7])) == row).all()


@pytest.mark.parametrize("memory", [{}, {"n_ctx": 120}], ids=["", "full context"])
def test_text_is_identical_with_a_head(
    head: Path, probe_cache: Path, prompts: list[str], memory: dict[str, Any]
) -> None:
    asked: list[dict[str, Any]] = [
        {"prompt": prompt, "max_tokens": 60, "seed": number, "temperature": temperature}
        for number, (prompt, temperature) in enumerate(zip(prompts, (0, 0.9, 1.3, 0.7, 0, 1), strict=True))
    ]
    asked[2]["json_schema"] = SCHEMA
    modes = ("off", "sequence", "tree", "auto")
    look = lambda mode, model: None  # noqa: E731
    given = {"draft": head, "engine": "onnx", "cache_dir": probe_cache, **memory}
    replies = check_modes_agree(modes, asked, look, TARGET.path, **given)
    for mode in ("sequence", "tree"):
        assert sum(reply.statistics.accepted for reply in replies[mode]) > 5


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K_M", "F16"])
def test_a_head_drafts_for_a_model_in_every_type_of_weights(
    kind: str, head: Path, tmp_path: Path, probe_cache: Path, prompts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where nobody asks for it: it was made here for another file of the model."""
    monkeypatch.setattr("platformdirs.user_data_path", lambda name: tmp_path)
    write_quantized(TARGET, other := tmp_path / f"other-{kind}.gguf", kind, requantize=True, n_threads=1)
    given: dict[str, Any] = {"engine": "onnx", "cache_dir": probe_cache}
    assert "sequence" not in possible_modes(other, **given)
    asked = questions(prompts[:4], (0, 0.9), max_tokens=40)
    modes, look = ("off", "sequence", "tree", "auto"), lambda mode, model: None
    replies = check_modes_agree(modes, asked, look, other, draft=head, **given)
    assert sum(reply.statistics.accepted for mode in ("sequence", "tree") for reply in replies[mode]) > 0
    made = made_drafter_folder(TARGET) / "drafter.gguf"
    made.parent.mkdir(parents=True)
    made.write_bytes(head.read_bytes())
    found = check_modes_agree(("sequence", "auto"), asked, look, other, **given)
    assert found["sequence"][0].token_ids == replies["off"][0].token_ids
    assert found["sequence"][0].statistics.drafted == replies["sequence"][0].statistics.drafted > 0


@pytest.mark.parametrize("leaf", ["head", "ngram"])
def test_an_intermediate_model_has_a_head_of_its_own_or_ngrams(
    leaf: str, kept: np.ndarray, tmp_path: Path, probe_cache: Path, prompts: list[str]
) -> None:
    """As in HierSpec: what drafts for the intermediate model reads its hidden states, and not the target's."""
    family = resolve_family("demo")
    assert family.intermediate is not None and family.draft is not None
    target, smaller = family.intermediate, {"intermediate": family.draft}
    if leaf == "head":
        write_head(own := tmp_path / "own.gguf", inspect(family.intermediate), kept, (1, 1, 2))
        target, smaller = family.target, {"intermediate": family.intermediate, "draft": own}
    asked = [
        {"prompt": prompt, "max_tokens": 50, "seed": 3, "temperature": t}
        for prompt, t in zip(prompts, (0, 0.8), strict=False)
    ]
    asked[1]["json_schema"] = SCHEMA
    given: dict[str, Any] = {"engine": "onnx", "n_ctx": 256, "n_threads": 1, "cache_dir": probe_cache}
    texts = []
    for mode in ("off", "auto", *(["hierarchy"] if leaf == "head" else [])):
        loading: dict[str, Any] = given if mode == "off" else given | smaller
        with edge_spec.load(target, speculation=mode, **loading) as model:
            texts.append([model.generate(**each).read() for each in asked])
            if mode != "off":
                assert model.mode == "hierarchy"
                names = {"target", "hierarchy.target", *(["hierarchy.sequence"] if leaf == "head" else [])}
                assert {name.replace("tree", "sequence") for name in model.followed} == names
                session = model.chat("You are a friend.", seed=1, max_tokens=20)
                session.send("Hello").read()
                session.save(tmp_path / "talk")
                again = edge_spec.chat.ChatSession.load(model, tmp_path / "talk")
                assert again.send("And then?").read() == session.send("And then?").read()
    assert all(text == texts[0] for text in texts)


def test_conversations_with_a_head_are_saved_and_continued(head: Path, tmp_path: Path, probe_cache: Path) -> None:
    def answers(*, stop: bool, **loading: Any) -> list[str]:
        """Three turns; the model is closed between them if ``stop``."""
        found: list[str] = []
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.chat"
        for turns in [["Hello!"], ["Why?"], ["Go on."]] if stop else [["Hello!", "Why?", "Go on."]]:
            given = {"engine": "onnx", "n_ctx": 160, "n_threads": 1, "cache_dir": probe_cache, **loading}
            with edge_spec.load(TARGET.path, **given) as model:
                chat = ChatSession.load(model, path) if path.exists() else model.chat(seed=4, max_tokens=50)
                found += [chat.send(turn).read() for turn in turns]
                chat.save(path)
        return found

    plain = answers(stop=False, speculation="off")
    assert answers(stop=False, draft=head, speculation="sequence") == plain
    assert answers(stop=True, draft=head, speculation="sequence") == plain


def test_a_heads_drafts_are_the_same_alone_in_company_after_eviction_and_from_files(
    head: Path, tmp_path: Path, probe_cache: Path, prompts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens and chances, bit by bit: of two drafts after the same text one is the beginning of the other."""
    draft_all, drafted = ModelDrafter.draft_all_while, dict[tuple[int, ...], Tree]()

    def noted(self: ModelDrafter, drafters: Sequence[Drafter], *given: Any) -> Sequence[Tree]:
        texts, trees = [tuple(each.text.tokens) for each in drafters], draft_all(self, drafters, *given)
        for text, tree in zip(texts, trees, strict=True):
            drafted[text] = max(drafted.get(text, tree), tree, key=len)
        return trees

    monkeypatch.setattr(ModelDrafter, "draft_all_while", noted)

    def drafts(how: str) -> dict[tuple[int, ...], Tree]:
        """Three turns of some conversations."""
        drafted.clear()
        given: dict[str, Any] = {"engine": "onnx", "n_ctx": 256, "n_threads": 1, "cache_dir": probe_cache}
        with edge_spec.load(TARGET.path, draft=head, speculation="sequence", **given) as model:
            if how == "evicted":
                model.ledger.claim("test", "the rest", max(0, (model.ledger.left_bytes or 0) - 1000))
            chats = [model.chat(seed=number, max_tokens=30) for number in range(4)]
            if how == "alone":
                for chat, prompt in zip(chats, prompts, strict=False):
                    for text in (prompt, "Why?", "Go on."):
                        chat.send(text).read()
                return dict(drafted)
            for said in (prompts[:4], ["Why?"] * 4, ["Go on."] * 4):
                replies = [chat.send(text) for chat, text in zip(chats, said, strict=True)]
                if how == "in company":
                    for reply in replies:
                        next(reply)
                for place, (chat, reply) in enumerate(zip(chats, replies, strict=True)):
                    reply.read()
                    if how == "from files":
                        chat.save(tmp_path / "talk")
                        chats[place] = ChatSession.load(model, tmp_path / "talk")
            assert (model.evicted_cells > 300) == (how == "evicted")
            return dict(drafted)

    alone = drafts("alone")
    for how in ("in company", "evicted", "from files"):
        both = [(alone[text], tree) for text, tree in drafts(how).items() if text in alone]
        assert len(both) > 100
        for one, other in both:
            n = min(len(one), len(other))
            assert (one.tokens[:n], one.values[:n]) == (other.tokens[:n], other.values[:n]), how


def test_what_a_head_cannot_do_is_said(head: Path, tmp_path: Path, probe_cache: Path, kept: np.ndarray) -> None:
    family = resolve_family("demo")
    given: dict[str, Any] = {"n_ctx": 128, "n_threads": 1, "cache_dir": probe_cache}
    with pytest.raises(UnsupportedModel, match="hidden states"):
        edge_spec.load(TARGET.path, draft=head, engine="llama", **given)
    with pytest.raises(SettingsError, match="intermediate"):
        edge_spec.load(TARGET.path, draft=head, intermediate=family.intermediate, **given)
    with pytest.raises(UnsupportedModel, match="made for"):
        edge_spec.load(head, **given)
    assert family.draft is not None
    other = tmp_path / "other.gguf"
    write_head(other, inspect(family.draft), kept, (1, 1, 1))
    with pytest.raises(
        UnsupportedModel, match=r"^other\.gguf was made for llama with .*, and target-q4_0\.gguf is llama"
    ):
        edge_spec.load(TARGET.path, draft=other, **given)
    for layers in ((2, 4, 9), (0, 4, 7), (-1, 4, 7)):
        write_head(other, TARGET, kept, layers)
        with pytest.raises(UnsupportedModel, match="does not name layers of"):
            edge_spec.load(TARGET.path, draft=other, **given)
