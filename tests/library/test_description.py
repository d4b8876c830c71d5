"""Laws of descriptions: what a header says is told, and no more."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf_files import PHI3, write_gguf

import edge_spec
from edge_spec.cli import main
from edge_spec.controller.drafter_choice import own_drafter
from edge_spec.errors import UnsupportedModel
from edge_spec.library.description import describe
from edge_spec.models import Family, inspect, resolve_family


def write_head(path: Path, architecture: str, *tensors: str) -> Path:
    """A model of as many layers as tensors, as far as its header tells."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(len(tensors))
    writer.add_embedding_length(64)
    writer.add_head_count(2)
    writer.add_vocab_size(7)
    for tensor in tensors:
        writer.add_tensor(tensor, np.zeros((4, 64), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_the_demo_family_is_described() -> None:
    family = resolve_family("demo")
    assert family.draft is not None and family.intermediate is not None
    found = describe(family.target, candidates=[family.intermediate, family.draft, family.draft, family.target])
    assert (found.file.architecture, found.file.quantization, found.file.n_vocab) == ("llama", "Q4_0", 8192)
    assert found.file_bytes == family.target.stat().st_size
    assert set(found.obstacles) == {"llama", "onnx"}
    assert found.obstacles["llama"] is None
    # The smallest first, each once, and never the model itself.
    assert [file.path for file in found.drafters] == [family.draft, family.intermediate]


def test_what_does_not_fit_is_not_a_drafter(tmp_path: Path) -> None:
    family = resolve_family("demo")
    other = write_gguf(tmp_path / "other.gguf", n_layers=1)
    (tmp_path / "broken.gguf").write_bytes(b"GGUF")
    candidates = [other, tmp_path / "broken.gguf", tmp_path / "missing.gguf"]
    assert describe(family.target, candidates=candidates).drafters == ()


def test_an_engine_says_why_it_cannot_run_a_file(tmp_path: Path) -> None:
    found = describe(write_gguf(tmp_path / "phi.gguf", **PHI3))
    assert found.obstacles["llama"] is None
    odd = describe(write_head(tmp_path / "odd.gguf", "mamba", "blk.0.ssm_in.weight"))
    assert odd.obstacles["onnx"] is not None


@pytest.mark.parametrize(
    ("architecture", "said"),
    [("dflash", "a DFlash drafter"), ("gemma4-assistant", "an assistant head")],
)
def test_heads_are_named_for_what_they_are(architecture: str, said: str, tmp_path: Path) -> None:
    path = write_head(tmp_path / "head.gguf", architecture, "blk.0.attn_q.weight")
    found = describe(path)
    assert found.head == said
    assert all(why == f"it is {said}" for why in found.obstacles.values())
    for arguments in ({"model": path}, {"model": "demo", "draft": path}):
        with pytest.raises(UnsupportedModel, match=f"head.gguf is {said}.*not supported yet") as caught:
            edge_spec.load(**arguments)
        assert "drafter make" in str(caught.value.hint)


def test_layers_for_several_tokens_are_counted(tmp_path: Path) -> None:
    assert describe(write_head(tmp_path / "mtp.gguf", "glm4moe", "blk.0.nextn.eh_proj.weight")).n_mtp_layers == 1
    assert describe(resolve_family("demo").target).n_mtp_layers == 0


def test_layers_for_several_tokens_that_no_engine_runs_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_head(tmp_path / "glm.gguf", "glm4moe", "blk.0.attn_q.weight", "blk.1.nextn.eh_proj.weight")
    why = "it reads hidden states, which glm.gguf does not provide as it is run here"
    note = f"the MTP layer in glm.gguf is not used: {why}"
    assert own_drafter(Family(target=path), inspect(path), "auto") == (None, note)
    with pytest.raises(SystemExit):
        main(["info", str(path)])
    assert f"\nMTP layers       1, which is not used: {why}\n" in capsys.readouterr().out
