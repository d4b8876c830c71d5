"""Laws of what PyTorch computes: rounding, losses, caches, samples, and continuing after an interruption."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tokenizers")

import gguf  # noqa: E402

from edge_spec.training.checkpoint import read_weights  # noqa: E402
from edge_spec.training.clock import Clock, TimeIsUp  # noqa: E402
from edge_spec.training.distill import inherit_embedding, write  # noqa: E402
from edge_spec.training.head import summed_divergence, summed_entropy  # noqa: E402
from edge_spec.training.model import Llama  # noqa: E402
from edge_spec.training.objective import Alternation, TextLoss  # noqa: E402
from edge_spec.training.quantize import fake_q4_0, fake_q8_0  # noqa: E402
from edge_spec.training.settings import Shape, Training  # noqa: E402
from edge_spec.training.train import Trainer  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]
SHAPE = Shape(n_layers=2, n_embd=64, n_head=2, n_head_kv=1, n_ff=96, n_vocab=256, n_ctx=64)


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
    inherit_embedding(target.embedding, model)
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
        build=lambda: Llama(SHAPE, dropout=training.dropout),
        training=training,
        objective=objective,
        judge=objective,
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
