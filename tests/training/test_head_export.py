"""Laws of a head written for llama.cpp: everything it had, and what llama.cpp takes from the file instead."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import gguf
import numpy as np
import pytest
from head_files import write_head
from lone_text import lone_text

from edge_spec.cli import main
from edge_spec.engines.onnx.opener import drafter_settings
from edge_spec.engines.registry import engine
from edge_spec.engines.settings import ModelSettings
from edge_spec.errors import UnsupportedModel
from edge_spec.models import inspect, kept_tokens, resolve_family
from edge_spec.speculation.tree import Tree
from edge_spec.training.drafter.llama_cpp import export_for_llama_cpp
from edge_spec.training.drafter.published import export_published

TARGET = inspect(resolve_family("demo").target)
KEPT = np.arange(300, 1000, 3)
TEXT = np.random.default_rng(3).integers(300, 1000, 60).tolist()


@pytest.fixture
def head(tmp_path: Path) -> Path:
    write_head(tmp_path / "head.gguf", TARGET, KEPT, (2, 4, 7), seed=5)
    return tmp_path / "head.gguf"


def test_an_exported_head_is_the_same_head_with_the_targets_rows(head: Path, tmp_path: Path) -> None:
    path = tmp_path / "eagle3.gguf"
    with pytest.raises(SystemExit) as ended:
        main(["drafter", "export", str(head), "--llama-cpp", str(path), "--target", "demo"])
    assert ended.value.code in (0, None)
    own, found, target = (gguf.GGUFReader(each) for each in (head, path, TARGET.path))
    tensors = {tensor.name: tensor for tensor in found.tensors}
    for tensor in own.tensors:
        copy = tensors.pop(tensor.name)
        assert (copy.tensor_type, copy.shape.tolist()) == (tensor.tensor_type, tensor.shape.tolist())
        assert np.array_equal(copy.data, tensor.data), tensor.name
    output, d2t = tensors.pop("output.weight"), tensors.pop("d2t")
    assert not tensors
    embedding = next(tensor for tensor in target.tensors if tensor.name == "token_embd.weight")
    assert output.tensor_type == embedding.tensor_type
    assert output.shape.tolist() == [TARGET.n_embd, len(KEPT)]
    assert np.array_equal(output.data, embedding.data[KEPT])
    assert d2t.tensor_type == gguf.GGMLQuantizationType.I64
    assert d2t.data.tolist() == KEPT.tolist()


def test_its_metadata_are_those_that_llama_cpp_reads(head: Path, tmp_path: Path) -> None:
    path = tmp_path / "eagle3.gguf"
    export_for_llama_cpp(inspect(head), TARGET, path)
    own, found, target = (gguf.GGUFReader(each) for each in (head, path, TARGET.path))
    assert not [key for key in found.fields if key.startswith("edge_spec.")]
    assert found.fields["general.architecture"].contents() == "eagle3"
    assert found.fields["eagle3.vocab_size"].contents() == TARGET.n_vocab
    for key, field in own.fields.items():
        if key.startswith("eagle3.") and key != "eagle3.vocab_size":
            assert found.fields[key].contents() == field.contents(), key
            assert found.fields[key].types == field.types, key
    tokenizer = {key for key in target.fields if key.startswith("tokenizer.") and key != "tokenizer.chat_template"}
    assert tokenizer == {key for key in found.fields if key.startswith("tokenizer.")}
    for key in tokenizer:
        assert found.fields[key].contents() == target.fields[key].contents(), key
        assert found.fields[key].types == target.fields[key].types, key


def rows_of(path: Path, cache: Path) -> np.ndarray:
    """Logits of a head's tokens along a text, and of a draft."""
    onnx, file = engine("onnx"), inspect(path)
    settings = onnx.resolve(TARGET, ModelSettings(n_ctx=200, n_threads=1, trees=True))
    with closing(onnx.opener(cache_dir=cache)) as opener:
        target = lone_text(opener.open(TARGET, settings).pool)
        head = lone_text(opener.open(file, drafter_settings(settings), target=(target.pool, TARGET)).pool, target)
        kept = kept_tokens(TARGET, file)
        assert kept is not None
        head.pool.trim(kept)
        target.prefill(TEXT)
        head.prefill(TEXT[:-9])
        tree = Tree.sequence(TEXT[-9:])
        found = [head.decode(tree).copy()]
        for token in (300, 303, 306):
            tree = Tree((*tree.tokens, token), (*tree.parents, len(tree) - 1))
            found.append(head.decode(tree).copy())
        head.close()
        target.close()
    return np.concatenate(found)


def test_a_published_form_drafts_alike(
    head: Path, tmp_path: Path, probe_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for the first token, which published heads do not see, and for activations, which floats do not round."""
    with pytest.raises(SystemExit) as ended:
        main(["drafter", "export", str(head), "--safetensors", str(tmp_path / "head"), "--target", "demo"])
    assert ended.value.code in (0, None)
    own = rows_of(head, probe_cache)

    def apart(path: Path) -> float:
        return float(np.sqrt(np.mean((rows_of(path, probe_cache) - own) ** 2)) / own.std())

    found = apart(tmp_path / "head" / "model.safetensors")
    assert found < 0.02
    monkeypatch.setattr("edge_spec.training.drafter.published._TURNED", ())
    assert apart(export_published(inspect(head), TARGET, tmp_path / "unturned")) > 2 * found


def test_only_heads_are_exported_and_only_with_their_own_target(head: Path, tmp_path: Path) -> None:
    family = resolve_family("demo")
    assert family.draft is not None
    assert family.intermediate is not None
    path = tmp_path / "eagle3.gguf"
    with pytest.raises(UnsupportedModel, match="is not a head") as caught:
        export_for_llama_cpp(inspect(family.draft), TARGET, path)
    assert "--kind head" in caught.value.hint
    with pytest.raises(UnsupportedModel, match=r"^head\.gguf was made for llama with 8 layers"):
        export_for_llama_cpp(inspect(head), inspect(family.intermediate), path)
    assert not path.exists()
