"""The training of one model: steps, progress, checkpoints, and continuing after an interruption.

What a step does depends on its number alone: which rows it reads, what dropout drops, the learning rate. So an
interrupted run ends with the same weights as an uninterrupted one, on the same device and number of threads.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy.typing as npt
import torch
from torch import Tensor

from edge_spec.training.checkpoint import save_state, save_weights
from edge_spec.training.clock import Clock, TimeIsUp
from edge_spec.training.head import summed_entropy
from edge_spec.training.model import Llama
from edge_spec.training.optimizer import Optimizer
from edge_spec.training.packing import HEAD, ID, Rows
from edge_spec.training.precision import autocast
from edge_spec.training.settings import Shape, Training

__all__ = ["Alternation", "Objective", "TextLoss", "Trainer", "compile_layers", "mean_loss", "to_device"]

_MEASURED_STEPS = (10, 30)
"""A time budget is turned into a number of steps by the speed between these two steps."""

_SILVER = 2**0.5 - 1


class Objective(Protocol):
    """What a training minimizes."""

    def rows(self, step: int, tokens: int) -> npt.NDArray[Any]:
        """The rows of a step, whole numbers that mean something to it, ``[n, length]`` with ``n * length = tokens``."""

    def learned(self, rows: Tensor) -> Tensor:
        """How many tokens of some rows are learned."""

    def loss(self, model: Llama, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Sum of the loss over the learned tokens of some rows, and their number."""


@dataclass(frozen=True)
class Alternation:
    """Divides steps between two kinds, spread evenly: ``share`` of them are of the first kind.

    Two alternations with different irrational ``ratio`` are independent of each other.
    """

    share: float
    ratio: float

    def first(self, step: int) -> bool:
        """Whether a step is of the first kind."""
        return (step * self.ratio) % 1 < self.share

    def before(self, step: int) -> int:
        """How many earlier steps were of the first kind."""
        return sum(self.first(earlier) for earlier in range(step))


@dataclass(frozen=True)
class TextLoss:
    """Cross entropy of the training text, in nats.

    Attributes:
        batch: returns rows of length ``row``: the number of the first one, and how many.
        short: the same text in shorter rows, which ``share`` of the steps read, since attention costs less in them.
    """

    batch: Callable[[int, int], Rows]
    row: int
    short: TextLoss | None = None
    share: float = 0.0

    def rows(self, step: int, tokens: int) -> Rows:
        kinds = Alternation(self.share, _SILVER)
        if self.short is not None and kinds.first(step):
            return self.short.rows(kinds.before(step), tokens)
        n = tokens // self.row
        return self.batch((step - kinds.before(step)) * n, n)

    def loss(self, model: Llama, rows: Tensor) -> tuple[Tensor, Tensor]:
        hidden, matrix = model.hidden(rows & ID)
        ids, learned = targets(rows)
        return summed_entropy(hidden, matrix, ids, learned), learned.sum()

    def learned(self, rows: Tensor) -> Tensor:
        return targets(rows)[1].sum()


def targets(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The token after each token, and whether it is learned; after the last of a row nothing is."""
    after = torch.roll(rows, -1, dims=1)
    learned = (after & HEAD) == 0
    learned[:, -1] = False
    return after & ID, learned


def to_device(rows: npt.NDArray[Any], device: str) -> Tensor:
    """Rows as 64-bit numbers on the device, ids still with their flags."""
    return torch.from_numpy(rows.astype("int64")).to(device, non_blocking=True)


def compile_layers(model: Llama, device: str) -> None:
    """Let PyTorch compile the layers, which share the compiled code. On the CPU that costs more than it gains."""
    if device == "cpu":
        return
    import torch._dynamo

    # Rows of texts and samples, with and without rounding, of target and student: more shapes than the default allows.
    torch._dynamo.config.cache_size_limit = 64
    # On a machine without a C compiler layers are computed without, only slower.
    torch._dynamo.config.suppress_errors = True
    for block in model.blocks:
        block.compile(dynamic=False)


def eager() -> AbstractContextManager[Any]:
    """Compile nothing for what is computed seldom."""
    return torch.compiler.set_stance("force_eager")


_AT_ONCE = 1 << 14
"""Tokens of held-out rows that are read together."""


@torch.no_grad()
def mean_loss(model: Llama, rows: npt.NDArray[Any], device: str, *, objective: Objective | None = None) -> float:
    """Mean loss per learned token of held-out rows, in nats and 32-bit arithmetic; cross entropy of the rows' text
    if there is no ``objective``."""
    was_training = model.training
    model.eval()
    with eager():
        text = TextLoss(lambda first, n: rows, rows.shape[1])
        loss = _mean_loss(model, rows, device, objective or text)
    model.train(was_training)
    return loss


def _mean_loss(model: Llama, rows: npt.NDArray[Any], device: str, objective: Objective) -> float:
    total, count = 0.0, 0
    n = max(1, _AT_ONCE // rows.shape[1])
    for first in range(0, len(rows), n):
        loss, learned = objective.loss(model, to_device(rows[first : first + n], device))
        total, count = total + float(loss), count + int(learned)
    return total / max(1, count)


@dataclass(kw_only=True)
class Trainer:
    """Trains one model. Its files are in a folder: ``state.pt``, ``log.jsonl`` and, at the end, ``weights.npz``.

    Args:
        folder: of this training alone.
        valid: held-out rows, for the log.
        judge: what their loss is; cross entropy of their text if None.
        clock: when it is over, the state is saved and ``TimeIsUp`` raised.
        start: changes the weights that a new training begins with.
        steps: number of steps instead of the training's own, to repeat a run that a time budget had cut.
        save_every_s: seconds between saved states.
        say: is given lines that report progress.
    """

    folder: Path
    shape: Shape
    training: Training
    objective: Objective
    valid: npt.NDArray[Any]
    seed: int
    device: str
    clock: Clock
    say: Callable[[str], None]
    start: Callable[[Llama], None] = lambda model: None
    judge: Objective | None = None
    steps: int | None = None
    save_every_s: float = 240.0
    log_every: int = 20
    valid_every: int = 250

    def run(self) -> None:
        """Train from the beginning, or from where an earlier run was interrupted; do nothing if it is finished."""
        if (self.folder / "weights.npz").is_file():
            return
        torch.manual_seed(self.seed)
        model = Llama(self.shape, dropout=self.training.dropout).to(self.device).train()
        self.start(model)
        optimizer = Optimizer(model, self.training.weight_decay)
        step, steps, before_s = 0, self.steps or self.training.steps, 0.0
        saved = self.folder / "state.pt"
        if saved.is_file():
            state = torch.load(saved, map_location=self.device, weights_only=True)
            model.load_state_dict(state["model"])
            optimizer.restore(state["optimiser"])
            step, steps, before_s = state["step"], state["steps"], state["seconds"]
            self.say(f"{self.folder.name}: continuing at step {step} of {steps}")
        self._drop_log_after(step)
        compile_layers(model, self.device)
        run = Clock()
        saved_s, measured_s = 0.0, None

        def save() -> None:
            save_state(
                saved,
                {
                    "model": model.state_dict(),
                    "optimiser": optimizer.state(),
                    "step": step,
                    "steps": steps,
                    "seconds": before_s + run.elapsed_s,
                },
            )

        losses: list[Tensor] = []
        since_s, began = 0.0, step
        while step < steps:
            losses.append(self._step(model, optimizer, step, steps))
            step += 1
            if step == _MEASURED_STEPS[0]:
                self._wait()
                measured_s = run.elapsed_s
            elif step == _MEASURED_STEPS[1] and measured_s is not None:
                self._wait()
                step_s = (run.elapsed_s - measured_s) / (_MEASURED_STEPS[1] - _MEASURED_STEPS[0])
                steps = self._fitting(step, steps, step_s, before_s + run.elapsed_s)
            if step % self.log_every == 0 or step == steps:
                loss = float(torch.stack(losses).mean())
                speed = (step - began) * self.training.step_tokens / max(1e-9, run.elapsed_s - since_s)
                valid = self._valid_loss(model) if self._validates(step, steps) else None
                self._log(step, steps, loss, speed, valid, before_s + run.elapsed_s)
                losses, began, since_s = [], step, run.elapsed_s
            over = step < steps and self.clock.over
            if over or run.elapsed_s - saved_s > self.save_every_s:
                save()
                saved_s = run.elapsed_s
            if over:
                raise TimeIsUp(f"{self.folder.name} is at step {step} of {steps}")
        save_weights(self.folder / "weights.npz", model)
        saved.unlink(missing_ok=True)

    def _fitting(self, step: int, steps: int, step_s: float, seconds: float) -> int:
        """How many of the planned steps the time budget allows; all of them if ``steps`` was given."""
        budget_s = self.training.budget_s
        if budget_s is None or self.steps is not None:
            return steps
        fitting = max(step + 1, min(steps, step + int((budget_s - seconds) / step_s)))
        self.say(f"{self.folder.name}: {fitting} steps of {step_s:.3f} s in {budget_s:.0f} s")
        return fitting

    def _drop_log_after(self, step: int) -> None:
        """Drop what an interrupted run logged after its last saved state."""
        log = self.folder / "log.jsonl"
        if log.is_file():
            lines = [line for line in log.read_text("utf-8").splitlines(True) if json.loads(line)["step"] <= step]
            log.write_text("".join(lines), encoding="utf-8")

    def _validates(self, step: int, steps: int) -> bool:
        return step == steps or step // self.valid_every != (step - self.log_every) // self.valid_every

    def _valid_loss(self, model: Llama) -> float:
        return mean_loss(model, self.valid, self.device, objective=self.judge)

    def _step(self, model: Llama, optimizer: Optimizer, step: int, steps: int) -> Tensor:
        training = self.training
        on = step >= steps * (1 - training.quantized)
        if on != model.quantized:
            model.quantize(on)
        torch.manual_seed((self.seed << 32) + step)  # for dropout: by the step's number, not by what was drawn before
        rows = self.objective.rows(step, training.step_tokens)
        moved = to_device(rows, self.device)
        total = torch.zeros((), device=self.device)
        learned = self.objective.learned(moved).clamp(min=1)
        for some in moved.split(training.micro_tokens // rows.shape[1]):
            with autocast(self.device):
                loss, _ = self.objective.loss(model, some)
            (loss / learned).backward()
            total += loss.detach()
        optimizer.step(_learning_rate(training, step, steps))
        return total / learned

    def _wait(self) -> None:
        if self.device != "cpu":
            torch.cuda.synchronize()

    def _log(self, step: int, steps: int, loss: float, speed: float, valid: float | None, seconds: float) -> None:
        left_s = (steps - step) * self.training.step_tokens / speed
        entry = {
            "step": step,
            "steps": steps,
            "tokens": step * self.training.step_tokens,
            "loss": round(loss, 4),
            "tokens_per_s": round(speed),
            "seconds": round(seconds, 1),
        }
        if valid is not None:
            entry["valid_loss"] = round(valid, 4)
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
        checked = f", held-out {valid:.3f}" if valid is not None else ""
        self.say(
            f"{self.folder.name}: step {step} of {steps}, loss {loss:.3f}{checked}, {speed:,.0f} tokens/s, "
            f"{left_s / 60:.1f} min left"
        )


def _learning_rate(training: Training, step: int, steps: int) -> float:
    """Warm-up, constant, then linear decay (Hägele et al., arXiv 2405.18392)."""
    left = min(1.0, (steps - step) / max(1.0, training.decay * steps))
    return training.learning_rate * min(1.0, (step + 1) / max(1, training.warmup)) * max(0.05, left)
