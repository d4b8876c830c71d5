"""Laws of how heads on hidden states are trained: training computes what the engine computes, and learns."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import gguf  # noqa: E402
from gguf.quants import dequantize  # noqa: E402

from edge_spec.engines.onnx.kernels import available  # noqa: E402
from edge_spec.engines.registry import engine  # noqa: E402
from edge_spec.errors import SettingsError, UnsupportedModel  # noqa: E402
from edge_spec.models import inspect, resolve_family  # noqa: E402
from edge_spec.speculation.tree import Tree  # noqa: E402
from edge_spec.training.checkpoint import read_weights, save_weights  # noqa: E402
from edge_spec.training.clock import Clock, TimeIsUp  # noqa: E402
from edge_spec.training.drafter.answers import Answers  # noqa: E402
from edge_spec.training.drafter.export import export_drafter  # noqa: E402
from edge_spec.training.drafter.head_model import Head  # noqa: E402
from edge_spec.training.drafter.head_objective import FewExpected, HeadLoss  # noqa: E402
from edge_spec.training.drafter.heads import build_head, continue_head, require_head, start_head, target_layers  # noqa: E402
from edge_spec.training.drafter.opened import opened_drafter, opened_with_hidden_rows  # noqa: E402
from edge_spec.training.drafter.settings import MakeSettings  # noqa: E402
from edge_spec.training.quantize import fake_q4_0  # noqa: E402
from edge_spec.training.settings import HeadShape, Training  # noqa: E402
from edge_spec.training.train import Trainer  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

WIDTH, N_VOCAB = 64, 96
SHAPE = HeadShape(
    n_layers=1, n_embd=WIDTH, n_head=2, n_head_kv=1, n_ff=96, n_vocab=N_VOCAB, n_ctx=64, target_layers=(1, 2, 3)
)
LENGTHS = (23, 9, 30, 17, 12, 26, 8, 19)
PROMPT = 4
"""Tokens of each prompt; the text after it is an answer."""


def random_head() -> Head:
    """A head in which every part changes what comes out."""
    torch.manual_seed(1)
    rows = torch.randn(N_VOCAB, WIDTH)
    rows[-1] = 0
    head = Head(SHAPE, rows, torch.randn(N_VOCAB, WIDTH))
    with torch.no_grad():
        for weight in head.parameters():
            if weight.ndim == 2:
                weight.normal_(std=weight.shape[1] ** -0.5)
            else:
                weight.uniform_(0.5, 1.5)
    return head


@dataclass
class World:
    """Texts that a target never wrote, with rows that say the next token."""

    answers: Answers
    hidden: np.ndarray


@pytest.fixture(scope="module")
def world() -> World:
    random = np.random.default_rng(0)
    begins = np.cumsum([0, *LENGTHS])
    tokens = random.integers(0, N_VOCAB - 1, begins[-1]).astype(np.int32)
    expected = np.full(begins[-1], -1, np.int32)
    for begin, end in pairwise(begins):
        expected[begin + PROMPT - 1 : end - 1] = 0
    learned = np.flatnonzero(expected >= 0)
    expected[learned] = np.arange(len(learned))
    columns = np.full((len(learned), 65), N_VOCAB - 1, np.int32)
    columns[:, 0] = tokens[learned + 1]
    chances = np.zeros((len(learned), 65), np.float16)
    chances[:, 0], chances[:, -1] = 0.9, 0.1
    answers = Answers(
        kept=np.arange(N_VOCAB - 1),
        tokens=tokens,
        begins=begins,
        expected=expected,
        columns=columns,
        chances=chances,
        coverage=1.0,
    )
    # The row of a token tells what comes two tokens later: what a head has to draft after reading one more.
    told = np.roll(tokens, -2)
    hidden = random.standard_normal((N_VOCAB, 3 * WIDTH)).astype(np.float16)[told]
    return World(answers, hidden)


def loss_of(world: World, *, row: int = 32, steps: int = 2) -> HeadLoss:
    return HeadLoss(
        answers=world.answers,
        texts=np.arange(len(LENGTHS)),
        row=row,
        short_row=row,
        short_share=0.0,
        seed=1,
        whole=True,
        hidden=world.hidden,
        steps=steps,
    )


def test_drafting_several_steps_at_once_is_drafting_token_by_token() -> None:
    """What training reads of n tokens in one pass is what a head gives that drafts them one after the other."""
    head, n, steps = random_head(), 12, 3
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(0, N_VOCAB, (n,), generator=generator)
    rows = torch.randn(n, 3 * WIDTH, generator=generator)
    before = torch.cat((torch.zeros(1, 3 * WIDTH), rows[:-1]))
    with torch.no_grad():
        found = head.ahead(tokens[None], before[None], torch.zeros(1, n, dtype=torch.int64), steps)
        logits = [each[0] @ head.output.T for each in found]
    for drafted in range(steps):
        for place in range(drafted, n):
            # The target has read all up to here but the last tokens, which were drafted.
            read = place + 1 - drafted
            wanted, _ = head.chain(tokens[:read], rows[:read], tokens[read : place + 1])
            assert torch.allclose(logits[drafted][place], wanted[-1], atol=1e-4), (drafted, place)


def test_texts_of_a_row_do_not_see_each_other() -> None:
    head = random_head()
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(0, N_VOCAB, (1, 20), generator=generator)
    hidden = torch.randn(1, 20, 3 * WIDTH, generator=generator)
    texts = torch.tensor([[4] * 8 + [9] * 9 + [-1] * 3])
    hidden[:, [0, 8]] = 0
    with torch.no_grad():
        together = head.ahead(tokens, hidden, texts, 2)
        for some in (slice(0, 8), slice(8, 17)):
            alone = head.ahead(tokens[:, some], hidden[:, some], texts[:, some], 2)
            # Angles of another place turn queries and keys alike.
            for a, b in zip(together, alone, strict=True):
                assert torch.allclose(a[:, some], b, atol=1e-4)


def test_what_is_wanted_of_some_places_is_what_all_places_give() -> None:
    """Answers behind prompts, in two texts of a row and at the end of another row."""
    head = random_head()
    generator = torch.Generator().manual_seed(4)
    tokens = torch.randint(0, N_VOCAB, (2, 24), generator=generator)
    hidden = torch.randn(2, 24, 3 * WIDTH, generator=generator)
    texts = torch.tensor([[1] * 10 + [2] * 14, [3] * 22 + [-1] * 2])
    hidden[0, [0, 10]] = hidden[1, 0] = 0
    wanted = torch.zeros(2, 24, dtype=torch.bool)
    wanted[0, 5:9] = wanted[0, 12:23] = wanted[1, 17:21] = True
    with torch.no_grad():
        some, everywhere = head.ahead(tokens, hidden, texts, 3, wanted), head.ahead(tokens, hidden, texts, 3)
    for a, b in zip(some, everywhere, strict=True):
        assert torch.allclose(a[wanted], b[wanted], atol=1e-4)
        assert not a[~wanted].any()


def test_a_text_begins_without_a_row_and_goes_on_with_that_of_the_token_before(world: World) -> None:
    loss = loss_of(world)
    rows = torch.from_numpy(loss.rows(0, 64))
    features = loss.reading(rows)[0].numpy()
    begins = set(world.answers.begins[:-1].tolist())
    for line, row in zip(features, rows.numpy(), strict=True):
        for feature, place in zip(line, row, strict=True):
            nothing = place < 0 or place in begins
            wanted = np.zeros(3 * WIDTH) if nothing else world.hidden[place - 1]
            assert (feature == wanted).all()


def test_only_places_of_answers_are_learned(world: World) -> None:
    loss, head = loss_of(world), random_head()
    rows = torch.from_numpy(loss.rows(0, 96))
    outputs, learned, expected = loss.read(head, rows)
    for output in outputs:
        output.retain_grad()
    assert int(learned.sum()) == len(expected.likeliest) == int(loss.learned(rows))
    total = torch.zeros(())
    for output in outputs:
        total = total + torch.log_softmax(output[learned] @ head.output.T, -1).square().sum()
    total.backward()
    places = rows.numpy()
    answered = np.where(places >= 0, world.answers.expected[places], -1) >= 0
    last = outputs[-1].grad.abs().sum(-1).numpy() > 0
    assert (last == answered).all()
    assert 0 < answered.sum() < (places >= 0).sum()


def test_the_loss_is_the_weighted_divergence_of_the_steps(world: World) -> None:
    loss, head = loss_of(world), random_head()
    rows = torch.from_numpy(loss.rows(0, 96))
    with torch.no_grad():
        total, n = loss.loss(head, rows)
        measures, n_measured = loss.sums(head, rows)
        outputs, learned, expected = loss.read(head, rows)
    assert isinstance(expected, FewExpected)
    columns, chances = expected.columns, expected.chances
    wanted = []
    for output in outputs:
        log_p = torch.log_softmax(output[learned] @ head.output.T, -1)
        each = torch.where(chances > 0, chances * (chances.clamp(min=1e-30).log() - log_p.gather(1, columns)), 0.0)
        wanted.append(float(each.sum()))
    assert (int(n), int(n_measured)) == (len(columns), len(columns))
    assert float(total) == pytest.approx((wanted[0] + 0.8 * wanted[1]) / 1.8, rel=1e-3)
    assert float(measures["valid_loss"]) == pytest.approx(float(total), rel=1e-3)
    assert [float(measures[f"loss_{step}"]) for step in (1, 2)] == pytest.approx(wanted, rel=1e-3)


def trainer(folder: Path, world: World, clock: Clock) -> Trainer[Head]:
    objective = loss_of(world)

    def start(model: Head) -> None:
        start_head(objective, model)

    return Trainer(
        folder=folder,
        build=lambda: Head(SHAPE, *(random_head().embedding, random_head().output)),
        start=start,
        training=Training(tokens=30 * 64, step_tokens=64, micro_tokens=64, learning_rate=1e-2, warmup=4),
        objective=objective,
        judge=objective,
        valid=objective.rows(0, 64),
        seed=2,
        device="cpu",
        clock=clock,
        say=lambda line: None,
        log_every=10,
    )


@pytest.mark.slow
def test_a_head_learns_and_an_interrupted_training_ends_with_the_same_weights(world: World, tmp_path: Path) -> None:
    trainer(tmp_path / "whole", world, Clock()).run()
    log = [json.loads(line) for line in (tmp_path / "whole" / "log.jsonl").read_text("utf-8").splitlines()]
    assert log[-1]["loss"] < 0.7 * log[0]["loss"]
    asked = iter(range(1 << 30))
    with pytest.raises(TimeIsUp):
        trainer(tmp_path / "cut", world, Clock(1.0, now=lambda: float(next(asked) > 15))).run()
    trainer(tmp_path / "cut", world, Clock()).run()
    whole, cut = (read_weights(tmp_path / name / "weights.npz") for name in ("whole", "cut"))
    assert whole[0] == cut[0] == SHAPE
    assert whole[1].keys() == cut[1].keys()
    for name, weight in whole[1].items():
        assert np.array_equal(weight, cut[1][name]), name


TARGET = inspect(resolve_family("demo").target)
KEPT = np.arange(300, 300 + 32 * 20 - 1)


@pytest.fixture(scope="module")
def of_demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Head, Path]:
    """A head for the demo's target that has learned nothing, and its file."""
    folder = tmp_path_factory.mktemp("head")
    torch.manual_seed(4)
    head = build_head(TARGET, KEPT)
    with torch.no_grad():
        for weight in head.parameters():
            if weight.ndim == 2:
                weight.normal_(std=weight.shape[1] ** -0.5)
    save_weights(folder / "weights.npz", head)
    export_drafter(folder / "weights.npz", KEPT, TARGET, folder / "head.gguf")
    return head, folder / "head.gguf"


def test_the_file_of_a_head_has_its_weights_and_none_of_the_targets(of_demo: tuple[Head, Path]) -> None:
    head, path = of_demo
    head.quantize(True)
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    assert stored.keys() == head.named_weights().keys()
    with torch.no_grad():
        for name, weight in head.named_weights().items():
            found = dequantize(stored[name].data, stored[name].tensor_type)
            wanted = weight.half().float()
            if weight.ndim == 2:
                wanted = fake_q4_0(wanted)
            assert np.array_equal(found, wanted.numpy()), name
    file = inspect(path)
    assert (file.architecture, file.n_vocab, file.n_embd) == ("eagle3", len(KEPT) + 1, TARGET.n_embd)
    assert file.trimmed is not None
    assert file.trimmed.teacher == TARGET.fingerprint
    assert list(file.trimmed.ids.decode()) == KEPT.tolist()


def test_a_head_that_learns_nothing_more_is_written_as_it_was(of_demo: tuple[Head, Path], tmp_path: Path) -> None:
    _, path = of_demo
    again = build_head(TARGET, KEPT)
    continue_head(inspect(path), again)
    save_weights(tmp_path / "weights.npz", again)
    export_drafter(tmp_path / "weights.npz", KEPT, TARGET, tmp_path / "head.gguf")
    assert (tmp_path / "head.gguf").read_bytes() == path.read_bytes()


def test_only_a_head_for_the_target_can_learn_on(of_demo: tuple[Head, Path]) -> None:
    head, model = inspect(of_demo[1]), inspect(resolve_family("demo").draft)
    require_head(head, TARGET)
    for file, target in ((head, model), (model, TARGET)):
        with pytest.raises(UnsupportedModel) as caught:
            require_head(file, target)
        assert str(caught.value) == (
            f"{file.path.name} is no head for {target.path.name}; give a file that `edge-spec drafter make --kind "
            "head` made for this model, or begin without one"
        )
    with pytest.raises(UnsupportedModel, match="does not fit this model"):
        continue_head(head, random_head())


@pytest.mark.skipif(available() is not None, reason="the kernels were not built")
def test_the_engine_computes_what_was_trained(of_demo: tuple[Head, Path], probe_cache: Path) -> None:
    head, path = of_demo
    onnx, text = engine("onnx"), np.random.default_rng(5).integers(200, 1100, 40)
    own = np.full(TARGET.n_vocab, len(KEPT))
    own[KEPT] = np.arange(len(KEPT))
    with opened_with_hidden_rows(TARGET, onnx, 64, target_layers(TARGET), cache_dir=probe_cache) as (target, _, rows):
        target.prefill(text.tolist())
        hidden = torch.from_numpy(rows[0 : len(text)].astype(np.float32))
    head.quantize(True)
    drafted = torch.tensor([3, 1])
    wanted, _ = head.chain(torch.from_numpy(own[text]), hidden, drafted)
    with opened_drafter(TARGET, inspect(path), onnx, 64, cache_dir=probe_cache) as (model, reader):
        assert reader is not None
        reader.prefill(text[:-1].tolist())
        model.prefill(own[text[:-2]].tolist())
        tree = Tree.sequence(own[text[-2:]].tolist())
        found = [*model.decode(tree).copy()]
        for token in drafted.tolist():
            tree = Tree((*tree.tokens, token), (*tree.parents, len(tree) - 1))
            found.append(model.decode(tree)[-1].copy())
    for row, right in zip(np.stack(found), wanted[-4:].numpy(), strict=True):
        apart = np.sqrt(np.mean((row - right) ** 2)) / right.std()
        # The engine rounds the target's rows and what it multiplies.
        assert apart < 0.1, apart


@pytest.mark.parametrize(
    "wrong", [{"kind": "tree"}, {"steps_ahead": 0}, {"head_row": 16}, {"head_row": 96, "kind": "head"}]
)
def test_settings_of_heads_out_of_range_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError) as caught:
        MakeSettings(**wrong)
    assert caught.value.argument == next(iter(wrong))
