"""Laws of the training, on the small setting and on the text of this repository: some minutes on two cores.

They need PyTorch.
"""

from __future__ import annotations

import ast
import json
import shutil
from collections.abc import Iterator
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
from edge_spec.training.checkpoint import load_model, read_weights  # noqa: E402
from edge_spec.training.clock import Clock, TimeIsUp  # noqa: E402
from edge_spec.training.distill import inherit_embedding, write  # noqa: E402
from edge_spec.training.head import summed_divergence, summed_entropy  # noqa: E402
from edge_spec.training.model import Llama, named_weights  # noqa: E402
from edge_spec.training.packing import ID  # noqa: E402
from edge_spec.training.quantize import fake_q4_0, fake_q8_0  # noqa: E402
from edge_spec.training.settings import SETTINGS, Shape, Training  # noqa: E402
from edge_spec.training.stages import STAGES, TRAININGS, Recipe  # noqa: E402
from edge_spec.training.train import Alternation, TextLoss, Trainer  # noqa: E402

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
SHAPE = Shape(n_layers=2, n_embd=64, n_head=2, n_head_kv=1, n_ff=96, n_vocab=256, n_ctx=64)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Sums depend on the number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(before)


def weights_of_every_kind(n: int = 4096) -> Any:
    """Rows of 64 weights, among them zeros, ties of both signs, and single giants."""
    generator = torch.Generator().manual_seed(5)
    weight = torch.randn(n, 64, generator=generator).half().float() * 0.05
    weight[0] = 0
    weight[1, :4] = torch.tensor([-0.5, 0.5, 0.5, -0.5])
    weight[2, :4] = torch.tensor([0.5, -0.5, 0.5, -0.5])
    weight[3, 7] = 1000
    weight[4:400] = (weight[4:400] * 64).round() / 64  # many exact halves between two codes
    return weight.half().float()


@pytest.mark.parametrize(("fake", "kind"), [(fake_q4_0, "Q4_0"), (fake_q8_0, "Q8_0")])
def test_rounding_in_training_is_rounding_in_the_file(fake: Any, kind: str) -> None:
    weight = weights_of_every_kind()
    number = gguf.GGMLQuantizationType[kind]
    expected = gguf.quants.dequantize(gguf.quants.quantize(weight.numpy(), number), number)
    assert np.array_equal(fake(weight).numpy(), expected)


def test_settled_weights_compute_what_rounded_ones_do() -> None:
    torch.manual_seed(0)
    model = Llama(SHAPE).eval()
    tokens = torch.randint(0, 256, (2, 20))
    with torch.no_grad():
        plain = model(tokens)
        model.quantize(True)
        rounded = model(tokens)
        model.round_weights()
        assert torch.equal(model(tokens), rounded)
    assert not torch.equal(plain, rounded)


def test_gradients_pass_through_rounding() -> None:
    weight = weights_of_every_kind(8).requires_grad_()
    push = torch.randn(8, 64, generator=torch.Generator().manual_seed(1))
    (fake_q4_0(weight) * push).sum().backward()
    assert torch.equal(weight.grad, push)


def test_losses_and_gradients_are_those_of_the_formula() -> None:
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(3, 500, 32, generator=generator, requires_grad=True)
    matrix = torch.randn(97, 32, generator=generator, requires_grad=True)
    teacher, teacher_matrix = torch.randn(3, 500, 16, generator=generator), torch.randn(97, 16, generator=generator)
    ids = torch.randint(97, (3, 500), generator=generator)
    learned = torch.rand(3, 500, generator=generator) < 0.7
    log_p, log_t = (hidden @ matrix.T).log_softmax(-1), (teacher @ teacher_matrix.T).log_softmax(-1)
    entropy = -(log_p.gather(-1, ids[..., None])[..., 0] * learned).sum()
    divergence = ((log_t.exp() * (log_t - log_p)).sum(-1) * learned).sum()
    for expected, found in (
        (entropy, summed_entropy(hidden, matrix, ids, learned)),
        (divergence, summed_divergence(hidden, matrix, teacher, teacher_matrix, learned)),
    ):
        assert torch.allclose(found, expected, rtol=1e-5)
        # Scaled, as the mean over the learned tokens is.
        gradients = [torch.autograd.grad(loss * 0.3, (hidden, matrix), retain_graph=True) for loss in (expected, found)]
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(*gradients, strict=True))
        with torch.no_grad():
            assert not summed_entropy(hidden, matrix, ids, learned).requires_grad


def test_alternations_keep_their_share_and_read_every_row_in_order() -> None:
    kinds = Alternation(0.7, 2**0.5 - 1)
    taken = [kinds.first(step) for step in range(1000)]
    assert abs(sum(taken) - 700) <= 2
    assert [kinds.before(step) for step in range(50)] == [sum(taken[:step]) for step in range(50)]
    numbers = {length: np.repeat(np.arange(4000, dtype=np.uint16)[:, None], length, axis=1) for length in (8, 32)}
    short = TextLoss(lambda first, n: numbers[8][first : first + n], 8)
    text = TextLoss(lambda first, n: numbers[32][first : first + n], 32, short=short, share=0.7)
    read = [text.rows(step, 64) for step in range(100)]
    for length, n in ((8, 8), (32, 2)):
        rows = [some for some in read if some.shape == (n, length)]
        assert np.array_equal(np.concatenate(rows)[:, 0], np.arange(n * len(rows)))
    assert sum(some.shape == (8, 8) for some in read) == sum(taken[:100])


def test_a_cache_changes_nothing_but_rounding() -> None:
    torch.manual_seed(0)
    model = Llama(SHAPE).eval()
    tokens = torch.randint(0, 256, (3, 40))
    with torch.no_grad():
        at_once = model(tokens)
        cache = model.cache(3, 40, torch.float32)
        steps = [model(tokens[:, :17], cache), *(model(tokens[:, n : n + 1], cache) for n in range(17, 40))]
    assert torch.allclose(torch.cat(steps, dim=1), at_once, atol=1e-4)


def test_smaller_models_begin_with_as_much_of_the_embedding_as_they_hold() -> None:
    torch.manual_seed(0)
    target = Llama(SHAPE)
    # Of rank 32, so that half the width can hold all of it.
    target.embedding.data = torch.randn(256, 32) @ torch.randn(32, 64)
    model = Llama(Shape(n_layers=1, n_embd=32, n_head=1, n_head_kv=1, n_ff=96, n_vocab=256, n_ctx=64))
    inherit_embedding(target, model)
    alike = (target.embedding @ target.embedding.T).detach()
    assert torch.allclose(model.embedding @ model.embedding.T, alike, atol=1e-4 * alike.abs().max().item())


def test_greedy_writing_is_the_arg_max_of_every_row() -> None:
    torch.manual_seed(0)
    model = Llama(SHAPE).eval()
    for parameter in model.parameters():
        parameter.data *= 3
    begin = np.random.default_rng(0).integers(0, 256, (4, 9)).astype(np.uint16)
    rows = write(model, begin, 20, torch.tensor([0.0, 0.0, 0.8, 1.0]), seed=1, device="cpu").astype(np.int64)
    with torch.no_grad():
        logits = model(torch.from_numpy(rows))[:, 8:-1]
    behind = logits.amax(-1) - logits.gather(-1, torch.from_numpy(rows)[:, 9:, None])[..., 0]
    # Writing may compute in 16 bits, where near ties fall either way.
    assert behind[:2].max() < 0.05
    assert behind[2:].max() > 0.5


class Interrupts(Clock):
    """A clock that is over at every so-manyth look."""

    def __init__(self, every: int) -> None:
        super().__init__()
        self._every, self._looks = every, 0

    @property
    def over(self) -> bool:
        self._looks += 1
        return self._looks % self._every == 0


def trainer(folder: Path, clock: Clock, **arguments: Any) -> Trainer:
    training = Training(
        tokens=64 * 4 * 40, step_tokens=256, micro_tokens=128, learning_rate=1e-2, dropout=0.1, warmup=5
    )
    text = np.random.default_rng(0).integers(0, 64, (97, 64)).cumsum(axis=1).astype(np.uint16) % 64
    objective = TextLoss(lambda first, n: text[(first + np.arange(n)) % len(text)], 64)
    return Trainer(
        folder=folder,
        shape=SHAPE,
        training=training,
        objective=objective,
        valid=text[:4],
        seed=2,
        device="cpu",
        clock=clock,
        say=lambda line: None,
        **arguments,
    )


def test_an_interrupted_training_ends_in_the_same_weights(tmp_path: Path) -> None:
    trainer(tmp_path / "straight", Clock()).run()
    n_interruptions = 0
    while True:
        try:
            trainer(tmp_path / "interrupted", Interrupts(7)).run()
            break
        except TimeIsUp:
            n_interruptions += 1
    assert n_interruptions >= 4
    straight, interrupted = (read_weights(tmp_path / name / "weights.npz")[1] for name in ("straight", "interrupted"))
    assert all(np.array_equal(straight[name], interrupted[name]) for name in straight)
    for log in tmp_path.glob("*/log.jsonl"):
        assert [json.loads(line)["step"] for line in log.read_text("utf-8").splitlines()] == [20, 40]


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
        assert tensors.keys() == named_weights(model).keys()
        assert inspect(path).quantisation == "Q4_0"
        for tensor, weight in named_weights(model).items():
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
    assert "not stated" in card  # these texts have no licence that the recipe knows
    record = json.loads((made.out / "family" / "training_log.json").read_text("utf-8"))
    assert set(record["trainings"]) == set(TRAININGS)
