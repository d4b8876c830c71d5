"""Laws of published ONNX models on disk: what is recognized is what the GGUF they were made of says."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from changed_json import edit
from gguf_files import write_gguf
from published_models import publish
from published_weights import Weights

from edge_spec.errors import (
    UnsupportedModel,
    VocabularyMismatch,
)
from edge_spec.models import check_pair, inspect, resolve, resolve_family

DRAFT = resolve_family("demo").draft
assert DRAFT is not None


@pytest.mark.parametrize("style", ["plain", "genai"])
def test_a_folder_says_the_same_as_the_gguf_it_was_made_of(made: dict[str, Path], style: str) -> None:
    file, source = inspect(resolve(made[style])), inspect(DRAFT)
    for name in ("n_layers", "n_embd", "n_head", "n_head_kv", "head_dim_k", "head_dim_v", "n_ctx_train", "n_vocab"):
        assert getattr(file, name) == getattr(source, name), name
    assert file.vocabulary.tokens_hash == source.vocabulary.tokens_hash
    assert file.chat_template == source.chat_template
    assert file.graph is not None
    assert (file.graph.bos, file.graph.eos, file.graph.ends) == (0, 2, {0, 2})
    assert file.graph.in_place == (style == "genai")
    assert file.graph.cache_kind == ("float16" if style == "genai" else "float32")
    assert file.quantization == ("int4" if style == "genai" else "float32")
    sizes = [path.stat().st_size for path in file.path.parent.glob("*data")]
    assert 0 <= file.weight_bytes - sum(sizes) < file.path.stat().st_size
    check_pair(source, file)
    check_pair(file, source)


def test_a_folder_of_links_as_a_hub_keeps_it_is_read_alike(made: dict[str, Path], tmp_path: Path) -> None:
    linked = tmp_path / "snapshot"
    for number, path in enumerate(sorted(path for path in made["plain"].rglob("*") if path.is_file())):
        blob = tmp_path / f"blob{number}"
        shutil.copy(path, blob)
        link = linked / path.relative_to(made["plain"])
        link.parent.mkdir(parents=True, exist_ok=True)
        try:
            link.symlink_to(blob)
        except OSError:
            pytest.skip("links cannot be made here")
    assert inspect(linked).fingerprint == inspect(made["plain"]).fingerprint


def test_a_folder_with_several_graphs_means_the_one_in_four_bits(weights_of_draft: Weights, tmp_path: Path) -> None:
    publish(tmp_path, weights_of_draft, "plain", name="model.onnx")
    quantized = publish(tmp_path, weights_of_draft, "plain", four_bits=True, name="model_q4.onnx")
    assert resolve(tmp_path) == quantized
    for name in ("a", "b"):
        (quantized.parent / f"model{name}.onnx").write_bytes(quantized.read_bytes())
    for path in (quantized, quantized.with_name("model.onnx")):
        path.unlink()
    with pytest.raises(UnsupportedModel, match="several graphs"):
        resolve(tmp_path)


def test_the_fingerprint_follows_weights_graph_and_nothing_else(copied: Callable[[str], Path]) -> None:
    folder = copied("plain")
    before = inspect(folder).fingerprint
    edit(folder / "config.json", note="other")
    assert inspect(folder).fingerprint == before
    data = folder / "onnx" / "model.onnx_data"
    raw = data.read_bytes()
    data.write_bytes(raw[: len(raw) // 2] + bytes(len(raw) - len(raw) // 2))
    assert inspect(folder).fingerprint != before


def test_another_vocabulary_is_told_by_its_first_token(copied: Callable[[str], Path]) -> None:
    folder = copied("genai")
    settings = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    vocab = settings["model"]["vocab"]
    vocab["someword"] = vocab.pop(next(text for text, token in vocab.items() if token == 700))
    (folder / "tokenizer.json").write_text(json.dumps(settings), "utf-8")
    for pair in ((inspect(DRAFT), inspect(folder)), (inspect(folder), inspect(DRAFT))):
        with pytest.raises(VocabularyMismatch, match=r"token 700 is .*someword"):
            check_pair(*pair)


def test_ids_without_a_text_are_named_as_a_conversion_names_them(copied: Callable[[str], Path]) -> None:
    """Embeddings are often padded beyond the tokens; a GGUF calls these [PAD...]."""
    folder = copied("genai")
    settings = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    vocab = settings["model"]["vocab"]
    last = next(text for text, token in vocab.items() if token == 8191)
    del vocab[last]
    settings["model"]["merges"] = [merge for merge in settings["model"]["merges"] if merge.replace(" ", "") != last]
    (folder / "tokenizer.json").write_text(json.dumps(settings), "utf-8")
    with pytest.raises(VocabularyMismatch, match=r"token 8191 is '\[PAD8191\]'"):
        check_pair(inspect(DRAFT), inspect(folder))


@pytest.mark.parametrize("place", ["jinja", "json", "list"])
def test_the_chat_template_is_found_where_exporters_put_it(copied: Callable[[str], Path], place: str) -> None:
    folder = copied("plain")
    edit(folder / "tokenizer_config.json", chat_template="old")
    if place == "jinja":
        (folder / "chat_template.jinja").write_text("new", "utf-8")
    elif place == "json":
        (folder / "chat_template.json").write_text('{"chat_template": "new"}', "utf-8")
    else:
        templates = [{"name": "tools", "template": "old"}, {"name": "default", "template": "new"}]
        edit(folder / "tokenizer_config.json", chat_template=templates)
    assert inspect(folder).chat_template == "new"


def test_a_gguf_of_other_tokens_does_not_fit(made: dict[str, Path], tmp_path: Path) -> None:
    other = inspect(write_gguf(tmp_path / "other.gguf"))
    with pytest.raises(VocabularyMismatch):
        check_pair(inspect(made["plain"]), other)
