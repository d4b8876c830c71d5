"""Laws of published heads as drafters: texts stay the same, wrong files are refused by name, found ones never hurt."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from modes_agree import check_modes_agree, questions
from published_heads import PublishedHead, write_gguf_head, write_safetensors_head

import edge_spec
from edge_spec.chat.session import ChatSession
from edge_spec.cli import main
from edge_spec.engines.onnx.kernels import available
from edge_spec.errors import EdgeSpecError, ModelFileError, VocabularyMismatch
from edge_spec.loading import plan, possible_modes
from edge_spec.models import inspect, resolve_family

pytestmark = [pytest.mark.long, pytest.mark.skipif(available() is not None, reason="the kernels were not built")]

TARGET = inspect(resolve_family("demo").target)
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}}}
GIVEN: dict[str, Any] = {"engine": "onnx", "n_ctx": 256, "n_threads": 1}


@pytest.fixture(scope="module")
def head(kept: Any) -> PublishedHead:
    """It knows so few tokens that it guesses right now and then, without any training."""
    ids = tuple(np.random.default_rng(1).permutation(kept).tolist())
    return PublishedHead(width=TARGET.n_embd, read=TARGET.n_embd, n_vocab=TARGET.n_vocab, layers=(2, 4, 8), ids=ids)


@pytest.fixture(scope="module")
def gguf_head(head: PublishedHead, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf_head(tmp_path_factory.mktemp("head") / "published.gguf", TARGET, replace(head, kind="Q8_0"))


@pytest.fixture(scope="module")
def safetensors_head(head: PublishedHead, tmp_path_factory: pytest.TempPathFactory) -> Path:
    own = replace(head, half_apart=True, kind="BF16", width=64, own=("output", "token_embd"))
    return write_safetensors_head(tmp_path_factory.mktemp("head") / "published", own)


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The demo's target in a folder of its own, and nothing of the user's. It differs in a bit, so that the demo's own
    drafter is not that of its family."""
    for name in ("CONFIG", "DATA", "CACHE", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name))
    path = tmp_path / "models" / TARGET.path.name
    path.parent.mkdir()
    shutil.copyfile(TARGET.path, path)
    with path.open("r+b") as file:
        file.seek(-1, 2)
        last = file.read(1)
        file.seek(-1, 2)
        file.write(bytes([last[0] ^ 1]))
    return path


@pytest.mark.parametrize("kind", ["gguf_head", "safetensors_head"])
@pytest.mark.parametrize("n_ctx", [256, 120], ids=["", "full context"])
def test_texts_are_those_of_plain_decoding(
    kind: str, n_ctx: int, probe_cache: Path, prompts: list[str], request: pytest.FixtureRequest
) -> None:
    asked = questions(prompts[:3], (0, 0.9), max_tokens=60)
    asked[1]["json_schema"] = SCHEMA
    given = {**GIVEN, "n_ctx": n_ctx, "draft": request.getfixturevalue(kind), "cache_dir": probe_cache}
    modes, look = ("off", "sequence", "tree", "auto"), lambda mode, model: None
    replies = check_modes_agree(modes, asked, look, TARGET.path, **given)
    for mode in ("sequence", "tree"):
        assert sum(reply.statistics.accepted for reply in replies[mode]) > 0


@pytest.mark.parametrize("kind", ["gguf_head", "safetensors_head"])
def test_texts_are_the_same_in_company_after_edits_and_from_files(
    kind: str, tmp_path: Path, probe_cache: Path, prompts: list[str], request: pytest.FixtureRequest
) -> None:
    def texts(how: str, **loading: Any) -> list[str]:
        found, path = [], tmp_path / "talk"
        with edge_spec.load(TARGET.path, **{**GIVEN, "cache_dir": probe_cache, **loading}) as model:
            chats = [model.chat(seed=number, max_tokens=24) for number in range(5)]
            for said in (prompts[:5], ["Why?"] * 5, ["Go on."] * 5):
                replies = [chat.send(text) for chat, text in zip(chats, said, strict=True)]
                if how == "company":
                    for reply in replies:
                        next(reply)
                for place, reply in enumerate(replies):
                    found.append(reply.read())
                    if how == "files":
                        chats[place].save(path)
                        chats[place] = ChatSession.load(model, path)
            found += [chat.retry().read() for chat in chats]
            found += [chat.edit("What else?").read() for chat in chats]
        return found

    plain = texts("alone", speculation="off")
    for how in ("alone", "company", "files"):
        assert texts(how, draft=request.getfixturevalue(kind), speculation="sequence") == plain, how


def test_a_head_drafts_for_the_intermediate_model_of_a_hierarchy(
    head: PublishedHead, tmp_path: Path, probe_cache: Path, prompts: list[str]
) -> None:
    family = resolve_family("demo")
    assert family.intermediate is not None
    between = inspect(family.intermediate)
    own = replace(head, width=between.n_embd, read=between.n_embd, layers=(1, 2, between.n_layers))
    path = write_gguf_head(tmp_path / "leaf.gguf", between, own)
    given = {**GIVEN, "draft": path, "intermediate": between.path, "cache_dir": probe_cache}
    names: list[set[str]] = []
    look = lambda mode, model: names.append({name.replace("tree", "sequence") for name in model.followed})  # noqa: E731
    check_modes_agree(("off", "hierarchy"), questions(prompts[:2], (0, 0.8), max_tokens=40), look, TARGET.path, **given)
    assert names[-1] == {"target", "hierarchy.target", "hierarchy.sequence"}


def test_a_plan_counts_a_heads_bytes(gguf_head: Path, probe_cache: Path) -> None:
    given = {**GIVEN, "cache_dir": probe_cache}
    with_head = plan(TARGET.path, draft=gguf_head, speculation="sequence", **given)
    part = with_head.chosen.parts["draft"]
    stored = sum(tensor.n_bytes for tensor in inspect(gguf_head).tensors if tensor.name != "d2t")
    assert stored <= part.mapped_bytes + part.copied_bytes <= 1.5 * stored
    without = plan(TARGET.path, speculation="off", **given)
    # Also what the target keeps for it, and its cells.
    assert with_head.chosen.held_bytes > without.chosen.held_bytes + stored


def code_of(*arguments: str) -> object:
    with pytest.raises(SystemExit) as left:
        main([*arguments])
    return left.value.code


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def edit_config(path: Path, **changes: Any) -> None:
    config = json.loads(path.with_name("config.json").read_text("utf-8"))
    path.with_name("config.json").write_text(json.dumps({**config, **changes}), "utf-8")


def not_a_number(path: Path) -> None:
    reader = gguf.GGUFReader(path, "r+")
    next(tensor for tensor in reader.tensors if tensor.name == "blk.0.attn_k.weight").data[3, 5] = np.nan
    del reader


def changed_ids(ids: Any) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        reader = gguf.GGUFReader(path, "r+")
        next(tensor for tensor in reader.tensors if tensor.name == "d2t").data[: len(ids)] = ids
        del reader

    return change


def nothing(path: Path) -> None:
    pass


WRONG: dict[str, tuple[dict[str, Any], Callable[[Path], None], str]] = {
    "another target": ({"read": 96}, nothing, "reads 96 numbers of a layer, and target-q4_0.gguf has"),
    "another vocabulary": ({"n_vocab": 500, "ids": (1, 2, 3)}, nothing, "was made for 500 tokens"),
    "other layers": ({"layers": (2, 4, 99)}, nothing, "does not name layers of target-q4_0.gguf"),
    "ids out of range": ({}, changed_ids([10**6]), "d2t that are not distinct"),
    "negative ids": ({}, changed_ids([-(10**6)]), "d2t that are not distinct"),
    "ids twice": ({"ids": (5, 7, 9)}, changed_ids([5, 7, 5]), "d2t that are not distinct"),
    "ids without rows": ({"own": ()}, nothing, "has no such rows"),
    "fewer rows than tokens": ({"ids": None, "own": ("output",), "missing": "d2t"}, nothing, "does not say which"),
    "a missing tensor": ({"missing": "blk.0.attn_norm_2"}, nothing, "lacks the tensor blk.0.attn_norm_2"),
    "a tensor too many": ({"more": "blk.0.attn_q_b"}, nothing, "has the tensor blk.0.attn_q_b"),
    "no embeddings": ({"width": 64}, nothing, "lacks token_embd"),
    "a wrong size": ({"wrong": "blk.0.ffn_down"}, nothing, "has the tensor blk.0.ffn_down in the shape"),
    "NaN": ({}, not_a_number, "holds NaN or infinite numbers in blk.0.attn_k"),
    "other rotary embeddings": ({"base": 0.5}, nothing, "rotary embeddings of a kind"),
    "half a file": ({}, cut, "ends too early"),
    "odd heads": ({"head_dim": 20, "n_rotary": 20}, nothing, "heads of 20 numbers"),
}


def write_wrong(path: Path, head: PublishedHead, kind: str) -> str:
    """Write a wrong head; returns what should be said of it."""
    fields, change, message = WRONG[kind]
    fields = dict(fields)
    spoilt = {name: fields.pop(name, None) for name in ("missing", "more", "wrong")}

    class Spoilt(PublishedHead):
        def stored(self) -> Any:
            found = super().stored()
            found.pop(spoilt["missing"], None)
            if spoilt["more"]:
                found[spoilt["more"]] = found["output_norm"]
            if spoilt["wrong"]:
                array, of = found[spoilt["wrong"]]
                found[spoilt["wrong"]] = array[:-1], of
            if spoilt["missing"] == "d2t":
                array, of = found["output"]
                found["output"] = array[:-7], of
            return found

    write_gguf_head(path, TARGET, Spoilt(**{**head.__dict__, **fields}), tokenizer=kind != "another vocabulary")
    change(path)
    return message


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_head_is_refused_in_one_line_and_passed_over_where_it_was_only_found(
    kind: str, head: PublishedHead, target: Path, probe_cache: Path, capsys: Any
) -> None:
    path = target.with_name("eagle3-wrong.gguf")
    message = write_wrong(path, head, kind)
    with pytest.raises((ModelFileError, VocabularyMismatch)) as raised:
        edge_spec.load(target, draft=path, **GIVEN, cache_dir=probe_cache)
    assert message in str(raised.value) and path.name in str(raised.value)
    assert code_of("run", str(target), "-p", "Hello", "-n", "2", "--draft", str(path), "--engine", "onnx") == 1
    said = capsys.readouterr().err.strip()
    assert message in said and len(said.splitlines()) == 1
    with edge_spec.load(target, **GIVEN, cache_dir=probe_cache) as model:
        assert model.mode == "ngram" and model.generate("Hello", max_tokens=3).read()
        (note,) = [note for note in model.notes if path.name in note]
        assert "is not used" in note and message in note


@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
def test_embeddings_that_are_no_numbers_change_no_text(
    value: float, head: PublishedHead, tmp_path: Path, probe_cache: Path, prompts: list[str]
) -> None:
    """They are not looked through: a single row of them is read for a token."""
    own = replace(head, own=("output", "token_embd"))
    path = write_gguf_head(tmp_path / "head.gguf", TARGET, own)
    reader = gguf.GGUFReader(path, "r+")
    next(tensor for tensor in reader.tensors if tensor.name == "token_embd.weight").data[::3] = value
    del reader
    asked = [
        {"prompt": prompt, "max_tokens": 30, "seed": 2, "temperature": t} for prompt in prompts[:2] for t in (0, 1)
    ]
    modes, look = ("off", "sequence", "tree", "auto"), lambda mode, model: None
    check_modes_agree(modes, asked, look, TARGET.path, **GIVEN, draft=path, cache_dir=probe_cache)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (cut, "damaged or not whole"),
        (lambda path: path.write_bytes(b"\xff" * 40), "damaged or not whole"),
        (lambda path: path.with_name("config.json").unlink(), "no readable config.json"),
        (lambda path: path.with_name("config.json").write_text("{"), "is not readable JSON"),
        (lambda path: edit_config(path, hidden_size="x"), "no valid number for hidden_size"),
        (lambda path: edit_config(path, partial_rotary_factor=1e308), "no valid number for partial_rotary_factor"),
        (lambda path: edit_config(path, num_hidden_layers=2), "no EAGLE-3 head of one layer"),
        (lambda path: edit_config(path, speculators_model_type="peagle"), "no EAGLE-3 head of one layer"),
        (lambda path: edit_config(path, hidden_act="gelu"), "no SiLU"),
        (lambda path: edit_config(path, target_hidden_size=77), "reads 77 numbers of a layer"),
        (lambda path: edit_config(path, fc_norm=True, norm_before_fc=True), "lacks the tensor enc.output_norm"),
        (lambda path: edit_config(path, rope_scaling={"rope_type": "dynamic"}), "in the way 'dynamic'"),
    ],
)
def test_wrong_safetensors_are_refused_by_name(
    change: Callable[[Path], None], message: str, safetensors_head: Path, tmp_path: Path, probe_cache: Path
) -> None:
    folder = tmp_path / "head"
    shutil.copytree(safetensors_head.parent, folder)
    change(folder / "model.safetensors")
    with pytest.raises(ModelFileError, match=message):
        edge_spec.load(TARGET.path, draft=folder / "model.safetensors", **GIVEN, cache_dir=probe_cache)


def test_without_the_library_safetensors_are_refused_or_passed_over(
    safetensors_head: Path, target: Path, probe_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(EdgeSpecError, match=r"safetensors is not installed; run: pip install"):
        edge_spec.load(target, draft=safetensors_head, **GIVEN, cache_dir=probe_cache)
    shutil.copytree(safetensors_head.parent, target.with_name("eagle3-demo"))
    with edge_spec.load(target, **GIVEN, cache_dir=probe_cache) as model:
        assert model.mode == "ngram"
        assert any("model.safetensors is not used: safetensors is not installed" in note for note in model.notes)


@pytest.mark.parametrize("name", ["eagle3-demo.gguf", "Demo-eagle3-Q8_0.gguf", "eagle3-demo/model.safetensors"])
def test_a_head_beside_the_model_drafts_without_being_asked(
    name: str, gguf_head: Path, safetensors_head: Path, target: Path, probe_cache: Path, capsys: Any
) -> None:
    assert "sequence" not in possible_modes(target, engine="onnx", cache_dir=probe_cache)
    beside = target.parent / name
    if name.endswith(".gguf"):
        shutil.copyfile(gguf_head, beside)
    else:
        shutil.copytree(safetensors_head.parent, beside.parent)
    with edge_spec.load(target, speculation="sequence", **GIVEN, cache_dir=probe_cache) as model:
        reply = model.generate("Tell me a story.", max_tokens=20)
        reply.read()
        assert reply.statistics.drafted > 0
    assert code_of("info", str(target)) == 0
    assert beside.name in capsys.readouterr().out
    assert code_of("info", str(beside)) == 0
    said = capsys.readouterr().out
    assert "an EAGLE-3 head" in said and "reads its layers 2, 4, 8" in said


def test_a_head_is_no_model(gguf_head: Path, safetensors_head: Path, probe_cache: Path) -> None:
    for path in (gguf_head, safetensors_head, safetensors_head.parent):
        with pytest.raises(ModelFileError, match="only drafts for the model that it was made for"):
            edge_spec.load(path, **GIVEN, cache_dir=probe_cache)
