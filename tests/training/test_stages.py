"""Laws of the stages, on the small setting and on the text of this repository: some minutes on two cores."""

from __future__ import annotations

import ast
import json
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tokenizers")

import gguf  # noqa: E402
from few_libraries import run_with_few_libraries  # noqa: E402

import edge_spec  # noqa: E402
from edge_spec.evaluation.check import Comparison, check  # noqa: E402
from edge_spec.models import inspect, resolve_family  # noqa: E402
from edge_spec.training.checkpoint import load_model  # noqa: E402
from edge_spec.training.clock import Clock  # noqa: E402
from edge_spec.training.packing import ID  # noqa: E402
from edge_spec.training.quantize import fake_q4_0, fake_q8_0  # noqa: E402
from edge_spec.training.settings import SETTINGS  # noqa: E402
from edge_spec.training.stages import STAGES, TRAININGS, Recipe  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]
ROOT = Path(__file__).parents[2]


def write_corpus(folder: Path) -> None:
    """Conversations and texts out of this repository: its functions and what they say they do."""
    records: list[dict[str, Any]] = []
    for path in sorted((ROOT / "edge_spec").rglob("*.py")) + sorted((ROOT / "tests").rglob("*.py")):
        text = path.read_text("utf-8")
        records.append({"source": "code", "text": text})
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and (said := ast.get_docstring(node)):
                turns = [{"role": "user", "text": f"What is {node.name}?"}, {"role": "assistant", "text": said}]
                records.append({"source": "docs", "turns": turns})
    folder.mkdir()
    for name, some in (("train", records[:-40]), ("held", records[-40:])):
        target = folder if name == "train" else folder.parent / "evaluation"
        target.mkdir(exist_ok=True)
        lines = "".join(json.dumps(record) + "\n" for record in some)
        (target / "text.jsonl").write_text(lines, encoding="utf-8")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """The small setting, from texts to card."""
    folder = tmp_path_factory.mktemp("recipe")
    write_corpus(folder / "texts")
    lines: list[str] = []
    recipe = Recipe(
        setting=replace(SETTINGS["small"], weights={}),
        texts=folder / "texts",
        evaluation=folder / "evaluation",
        out=folder / "out",
        seed=1,
        device="cpu",
        clock=Clock(),
        say=lines.append,
    )
    for stage in STAGES:
        getattr(recipe, stage)()
    results = json.loads((folder / "out" / "results.json").read_text("utf-8"))
    return SimpleNamespace(recipe=recipe, out=folder / "out", results=results, lines=lines)


def test_losses_fall(made: SimpleNamespace) -> None:
    for name in TRAININGS:
        losses = [json.loads(line)["loss"] for line in (made.out / name / "log.jsonl").read_text("utf-8").splitlines()]
        assert losses[-1] < 0.8 * losses[0]
        assert sum(after < before for before, after in pairwise(losses)) > 0.7 * (len(losses) - 1)


def test_llama_cpp_computes_what_was_trained(made: SimpleNamespace) -> None:
    assert made.results["differing_texts"] == 0 < made.results["texts"]
    for model in made.results["models"].values():
        assert model["logits_differ"]["F32"] < 1e-3
        assert model["logits_differ"]["F16"] < 1e-2
        assert model["Q4_0"]["loss"] < 1.02 * model["F16"]["loss"]


def test_files_hold_exactly_the_weights_of_the_training(made: SimpleNamespace) -> None:
    for role, path in vars(resolve_family(made.out / "family")).items():
        if role == "name":
            continue
        name = {"target": "target", "intermediate": "intermediate", "draft": "draft"}[role]
        model = load_model(made.out / name / "weights.npz", "cpu")
        tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
        assert tensors.keys() == model.named_weights().keys()
        assert inspect(path).quantization == "Q4_0"
        for tensor, weight in model.named_weights().items():
            fake = {"token_embd.weight": fake_q8_0}.get(tensor, fake_q4_0) if weight.ndim == 2 else lambda w: w
            found = gguf.quants.dequantize(tensors[tensor].data, tensors[tensor].tensor_type)
            assert np.array_equal(fake(weight.detach()).numpy(), found.reshape(weight.shape))


def test_distillation_raises_acceptance(made: SimpleNamespace) -> None:
    share = {name: sum(kind["share"] for kind in kinds.values()) for name, kinds in made.results["acceptance"].items()}
    for role in ("intermediate", "draft"):
        assert share[role] > share[f"{role}-plain"]


def test_the_family_keeps_the_promise(made: SimpleNamespace) -> None:
    modes = ["sequence", "tree", "hierarchy", "ngram"]
    family = made.out / "family"
    compared = 0
    for found in check(
        lambda mode: edge_spec.load(family, speculation=mode, engine="llama", cache_dir=None),
        ["What is Tree?", "What is a draft?"],
        modes=modes,
        max_tokens=40,
    ):
        assert isinstance(found, Comparison) and found.first_difference is None, found
        compared += 1
    assert compared == len(modes) * 2 * 3


def test_samples_begin_with_the_training_text(made: SimpleNamespace) -> None:
    sampling = made.recipe.setting.sampling
    text = made.recipe.corpus.batch(0, made.recipe.corpus.epoch_rows)
    from edge_spec.training.distill import prompts, read_samples

    rows = read_samples(made.out / "samples")
    assert rows.shape == (sampling.rows, sampling.prompt + sampling.new)
    assert np.array_equal(rows[: sampling.batch, : sampling.prompt], prompts(made.recipe.corpus, sampling, 0, 1))
    assert (rows & ID).max() < made.recipe.setting.n_vocab
    assert text.shape[1] == made.recipe.setting.row


def test_finished_stages_are_left_alone(made: SimpleNamespace) -> None:
    before = {path: path.stat().st_mtime_ns for path in made.out.glob("*/weights.npz")}
    for stage in STAGES[:6]:
        getattr(made.recipe, stage)()
    assert before == {path: path.stat().st_mtime_ns for path in made.out.glob("*/weights.npz")}


def test_a_checkout_trains_where_nothing_but_pytorch_and_numpy_is_installed(
    made: SimpleNamespace, tmp_path: Path
) -> None:
    shutil.copytree(made.out / "prepared", tmp_path / "prepared")
    arguments = ["training", "--out", str(tmp_path), "--setting", "small", "--stage", "target", "--time-limit-s", "1"]
    code = f"""
import runpy
sys.argv = {arguments!r}
sys.path.insert(0, "")
runpy.run_path({str(ROOT / "training")!r}, run_name="__main__")
"""
    done = run_with_few_libraries(code)
    assert done.returncode == 3, done.stderr
    assert "time limit reached" in done.stdout
    assert (tmp_path / "target" / "state.pt").is_file()


def test_the_card_names_sources_sizes_and_losses(made: SimpleNamespace) -> None:
    card = (made.out / "family" / "README.md").read_text("utf-8")
    for model in made.results["models"].values():
        assert f"{model['Q4_0']['loss']:.3f}" in card
    assert "not stated" in card  # these texts have no license that the recipe knows
    record = json.loads((made.out / "family" / "training_log.json").read_text("utf-8"))
    assert set(record["trainings"]) == set(TRAININGS)
