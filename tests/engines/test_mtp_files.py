"""Laws of MTP layers as drafters: texts stay the same, they are found, and wrong ones are refused by name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hybrid_shapes import SMALL_HYBRIDS, write_hybrid
from modes_agree import check_modes_agree, wishes
from mtp_files import beside, rewritten, that_guesses

import edge_spec
from edge_spec.chat.session import ChatSession
from edge_spec.cli import main
from edge_spec.controller.drafter_choice import own_drafter
from edge_spec.engines.onnx.kernels import available
from edge_spec.errors import EdgeSpecError, ModelFileError
from edge_spec.library.description import drafters_for
from edge_spec.loading import plan, possible_modes
from edge_spec.models import Family, drafter_of, inspect
from edge_spec.models.made_drafters import choose_drafter
from edge_spec.models.mtp import mtp_head

pytestmark = [pytest.mark.long, pytest.mark.skipif(available() is not None, reason="the kernels were not built")]

SHAPES = {
    "qwen35": replace(SMALL_HYBRIDS["qwen35"], mtp=1),
    "qwen35moe": replace(SMALL_HYBRIDS["qwen35"], architecture="qwen35moe", experts=(8, 2, 96), mtp=1),
}
TRUNK = SMALL_HYBRIDS["qwen35"].n_layers
GIVEN: dict[str, Any] = {"engine": "onnx", "n_ctx": 256, "n_threads": 1}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Models with an MTP layer, by architecture, each in a folder of its own."""
    found = {}
    for name, shape in SHAPES.items():
        folder = tmp_path_factory.mktemp(name)
        drawn = write_hybrid(folder / "drawn.bin", shape, "Q4_0", seed=1)
        found[name] = that_guesses(drawn, folder / "model.gguf", n_layers=TRUNK)
    return found


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONFIG", "DATA", "CACHE", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name))


@pytest.mark.parametrize("n_ctx", [256, 90], ids=["", "full context"])
@pytest.mark.parametrize("name", SHAPES)
def test_texts_are_those_of_plain_decoding(name: str, n_ctx: int, models: dict[str, Path], probe_cache: Path) -> None:
    modes = ("off", "sequence", "auto")
    asked = wishes(("abcabc", "In the beginning there was"), 100)
    given = {**GIVEN, "n_ctx": n_ctx, "cache_dir": probe_cache}
    replies = check_modes_agree(modes, asked, lambda mode, model: None, models[name], **given)
    done = [reply.statistics for reply in replies["sequence"]]
    assert 0 < sum(each.accepted for each in done) < sum(each.drafted for each in done)


@pytest.mark.parametrize("name", SHAPES)
def test_texts_are_the_same_in_company_after_edits_and_from_files(
    name: str, models: dict[str, Path], tmp_path: Path, probe_cache: Path
) -> None:
    prompts = ["abc", "another one", "x" * 30]

    def texts(how: str, **loading: Any) -> list[str]:
        found, path = [], tmp_path / "talk"
        with edge_spec.load(models[name], **{**GIVEN, "cache_dir": probe_cache, **loading}) as model:
            chats = [model.chat(seed=number, max_tokens=16, ignore_eos=True) for number in range(3)]
            for said in (prompts, ["Why?"] * 3, ["Go on."] * 3):
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
        assert texts(how, speculation="sequence") == plain, how


def test_a_saved_conversation_goes_on_with_the_same_drafts(models: dict[str, Path], tmp_path: Path) -> None:
    """What the layer reads of the model's rows is saved with it."""
    accepted = []
    for is_saved in (False, True):
        with edge_spec.load(models["qwen35"], speculation="sequence", **GIVEN, cache_dir=tmp_path) as model:
            chat = model.chat(seed=4, temperature=0.9, max_tokens=100, ignore_eos=True)
            chat.send("abcabc").read()
            if is_saved:
                chat.save(tmp_path / "talk")
                chat = ChatSession.load(model, tmp_path / "talk")
            reply = chat.send("and then")
            reply.read()
            accepted.append(reply.statistics.accepted)
    assert accepted[0] == accepted[1] > 0


def test_a_layer_inside_drafts_without_being_asked_and_is_named(
    models: dict[str, Path], probe_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = models["qwen35"]
    assert "sequence" in possible_modes(path, engine="onnx", cache_dir=probe_cache)
    assert code_of("info", str(path)) == 0
    assert "\nMTP layers       1, which drafts unless another drafter is named" in capsys.readouterr().out
    assert code_of("info", str(path), "--json") == 0
    assert json.loads(capsys.readouterr().out)["mtp_layers"] == 1
    with edge_spec.load(path, speculation="auto", **GIVEN, cache_dir=probe_cache) as model:
        assert (model.mode, model.notes) == ("sequence", ("the MTP layer in model.gguf drafts",))


def test_a_layer_drafts_on_llama_cpp_for_nobody_and_a_note_says_so(models: dict[str, Path], probe_cache: Path) -> None:
    with edge_spec.load(models["qwen35"], **{**GIVEN, "engine": "llama"}, cache_dir=probe_cache) as model:
        assert model.mode == "ngram"
        (note,) = [note for note in model.notes if "MTP" in note]
        assert "the MTP layer in model.gguf is not used: it reads hidden states" in note
    with edge_spec.load(models["qwen35"], speculation="ngram", **GIVEN, cache_dir=probe_cache) as model:
        assert not model.notes


def test_a_layer_beside_a_model_drafts_without_being_asked(
    models: dict[str, Path], tmp_path: Path, probe_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    plain = rewritten(
        models["qwen35"],
        folder / "plain.gguf",
        keep=lambda name: not name.startswith(f"blk.{TRUNK}."),
        facts={"qwen35.block_count": TRUNK, "qwen35.nextn_predict_layers": 0},
    )
    assert "sequence" not in possible_modes(plain, engine="onnx", cache_dir=probe_cache)
    # A model whose name is like that of a head is no head.
    shutil.copyfile(models["qwen35"], folder / "other-mtp-model.gguf")
    assert "sequence" not in possible_modes(plain, engine="onnx", cache_dir=probe_cache)
    head = beside(models["qwen35"], folder / "mtp-plain.gguf", n_layers=TRUNK)
    with edge_spec.load(plain, speculation="sequence", **GIVEN, cache_dir=probe_cache) as model:
        assert model.notes == ("mtp-plain.gguf drafts",)
        reply = model.generate("abcabc", raw=True, seed=4, max_tokens=100, ignore_eos=True)
        reply.read()
        assert reply.statistics.accepted > 0
    for path, said in ((plain, "mtp-plain.gguf"), (head, "an MTP layer: it reads another model's hidden states")):
        assert code_of("info", str(path)) == 0
        assert said in capsys.readouterr().out
    with pytest.raises(ModelFileError, match="only drafts for the model that it was made for"):
        edge_spec.load(head, **GIVEN, cache_dir=probe_cache)


def test_a_plan_counts_a_layers_bytes_once(models: dict[str, Path], probe_cache: Path) -> None:
    given = {**GIVEN, "cache_dir": probe_cache}
    for path in models.values():
        with_layer, without = (plan(path, speculation=mode, **given) for mode in ("sequence", "off"))
        head = mtp_head(inspect(path))
        assert head is not None
        part = with_layer.chosen.parts["draft"]
        assert head.weight_bytes <= part.mapped_bytes + part.copied_bytes <= 1.5 * head.weight_bytes + 60_000
        assert with_layer.chosen.held_bytes > without.chosen.held_bytes + head.weight_bytes
        # Plain decoding does not hold the layer.
        assert without.chosen.parts["target"].mapped_bytes < inspect(path).weight_bytes - head.weight_bytes / 2


def code_of(*arguments: str) -> object:
    with pytest.raises(SystemExit) as left:
        main([*arguments])
    return left.value.code


def spoilt(name: str, change: Callable[[Any], Any]) -> Callable[[Path, Path], Path]:
    """Write a model with another tensor of this end."""

    def write(source: Path, path: Path) -> Path:
        name_of = f"blk.{TRUNK}.{name}.weight"
        tensor = next(tensor for tensor in gguf.GGUFReader(source).tensors if tensor.name == name_of)
        return rewritten(
            source, path, more={name_of: change(gguf.quants.dequantize(tensor.data, tensor.tensor_type).copy())}
        )

    return write


def not_a_number(x: Any) -> Any:
    x.flat[7] = np.nan
    return x


def without(name: str) -> Callable[[Path, Path], Path]:
    return lambda source, path: rewritten(source, path, keep=lambda each: each != f"blk.{TRUNK}.{name}.weight")


WRONG: dict[str, tuple[Callable[[Path, Path], Path], str]] = {
    "no norm of tokens": (without("nextn.enorm"), f"lacks the tensor blk.{TRUNK}.nextn.enorm.weight"),
    "no keys": (without("attn_k"), f"lacks the tensor blk.{TRUNK}.attn_k.weight"),
    "no norm of queries": (without("attn_q_norm"), f"lacks the tensor blk.{TRUNK}.attn_q_norm.weight"),
    "another width": (spoilt("ffn_down", lambda x: x[:-32]), f"has blk.{TRUNK}.ffn_down.weight in the shape"),
    "half of what joins": (
        spoilt("nextn.eh_proj", lambda x: x[:, :256]),
        f"has blk.{TRUNK}.nextn.eh_proj.weight in the shape",
    ),
    "NaN": (spoilt("attn_v", not_a_number), f"holds NaN or infinite numbers in blk.{TRUNK}.attn_v.weight"),
    "NaN in a norm": (
        spoilt("nextn.hnorm", not_a_number),
        f"holds NaN or infinite numbers in blk.{TRUNK}.nextn.hnorm.weight",
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_layer_is_refused_where_it_was_named_and_else_the_model_runs_without_it(
    kind: str, models: dict[str, Path], tmp_path: Path, probe_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write, message = WRONG[kind]
    (tmp_path / "models").mkdir()
    path = write(models["qwen35"], tmp_path / "models" / "wrong.gguf")
    with pytest.raises(EdgeSpecError) as raised:
        edge_spec.load(path, draft=path, **GIVEN, cache_dir=probe_cache)
    assert message in str(raised.value) and path.name in str(raised.value)
    assert code_of("run", str(path), "-p", "Hello", "-n", "2", "--draft", str(path), "--engine", "onnx") == 1
    said = capsys.readouterr().err.strip()
    assert message in said and len(said.splitlines()) == 1
    with edge_spec.load(path, **GIVEN, cache_dir=probe_cache) as model:
        assert model.mode == "ngram" and model.generate("Hello", max_tokens=3).read() is not None
        (note,) = [note for note in model.notes if path.name in note]
        assert "the MTP layer in wrong.gguf is not used" in note and message in note


def test_a_layer_of_another_model_is_refused_in_one_line(
    models: dict[str, Path], tmp_path: Path, probe_cache: Path
) -> None:
    layer = beside(models["qwen35"], tmp_path / "mtp-model.gguf", n_layers=TRUNK)
    for name, change in (("deeper", {"n_layers": 3}), ("wider", {"n_embd": 320})):
        shape = replace(SHAPES["qwen35"], mtp=0, **change)
        target = write_hybrid(tmp_path / f"{name}.gguf", shape, "Q4_0", seed=1)
        with pytest.raises(EdgeSpecError, match=r"mtp-model.gguf (belongs to qwen35 with 2 layers|reads 256 numbers)"):
            edge_spec.load(target, draft=layer, **GIVEN, cache_dir=probe_cache)
    with pytest.raises(EdgeSpecError, match="belongs to qwen35 with 2 layers of width 256, and"):
        edge_spec.load(models["qwen35moe"], draft=layer, **GIVEN, cache_dir=probe_cache)


def test_several_layers_are_refused_and_the_model_runs(tmp_path: Path, probe_cache: Path) -> None:
    path = write_hybrid(tmp_path / "model.gguf", replace(SHAPES["qwen35"], mtp=2), "Q4_0", seed=1)
    with edge_spec.load(path, **GIVEN, cache_dir=probe_cache) as model:
        assert model.mode == "ngram" and model.generate("Hello", max_tokens=3).read() is not None
        assert any("has 2 layers, and only heads of one are supported" in note for note in model.notes)


def test_a_head_on_layers_reads_the_same_of_a_model_with_a_layer_for_further_tokens(
    models: dict[str, Path], tmp_path: Path, probe_cache: Path
) -> None:
    """EAGLE-3 heads draft for models with recurrent layers, too, and do not count layers for further tokens."""
    from published_heads import PublishedHead, write_gguf_head

    target = inspect(models["qwen35"])
    head = PublishedHead(width=256, read=256, n_vocab=target.n_vocab, layers=(1, TRUNK), own=())
    path = write_gguf_head(tmp_path / "head.gguf", target, head)
    asked = wishes(("abcabc",), 40)
    given = {**GIVEN, "draft": path, "cache_dir": probe_cache}
    check_modes_agree(("off", "sequence", "auto"), asked, lambda mode, model: None, models["qwen35"], **given)


def test_a_layer_that_was_measured_stays_chosen(models: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    path = models["qwen35"]
    target = inspect(path)
    (layer,) = [each for each in drafters_for(target, [path]) if each.head is not None]
    choose_drafter(target, layer, {"speed_up": 1.5, "interval": [1.2, 1.8]}, "onnx")
    assert drafter_of(target, "onnx") == path
    assert own_drafter(Family(target=path), target, "onnx") == (path, "")
    assert code_of("info", str(path)) == 0
    assert f"{path} (--engine onnx, 1.50 times as fast as plain decoding" in capsys.readouterr().out
