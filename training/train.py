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
from typing import Any, Generic, TypeVar

import numpy.typing as npt
import torch
from torch import Tensor

from edge_spec.training.checkpoint import save_state, save_weights
from edge_spec.training.clock import Clock, TimeIsUp
from edge_spec.training.modules import Trainable
from edge_spec.training.objective import Judge, Objective, to_device
from edge_spec.training.optimizer import Optimizer
from edge_spec.training.precision import autocast
from edge_spec.training.settings import Training

__all__ = ["Trainer", "compile_layers", "held_out"]

M = TypeVar("M", bound=Trainable)

_MEASURED_STEPS = (10, 30)
"""A time budget is turned into a number of steps by the speed between these two steps."""


def compile_layers(model: Trainable, device: str) -> None:
    """Let PyTorch compile the layers, which share the compiled code. On the CPU that costs more than it gains."""
    if device == "cpu":
        return
    import torch._dynamo

    # Rows of texts and samples, with and without rounding, of target and student: more shapes than the default allows.
    torch._dynamo.config.cache_size_limit = 64
    # On a machine without a C compiler layers are computed without, only slower.
    torch._dynamo.config.suppress_errors = True
    for block in model.layers:
        block.compile(dynamic=False)


def eager() -> AbstractContextManager[Any]:
    """Compile nothing for what is computed seldom."""
    return torch.compiler.set_stance("force_eager")


_AT_ONCE = 1 << 14
"""Tokens of held-out rows that are read together."""


@torch.no_grad()
def held_out(model: M, rows: npt.NDArray[Any], device: str, judge: Judge[M]) -> dict[str, float]:
    """Return what is measured on held-out rows, each the mean over their learned tokens, in 32-bit arithmetic."""
    was_training = model.training
    model.eval()
    totals: dict[str, float] = {}
    count = 0
    n = max(1, _AT_ONCE // rows.shape[1])
    with eager():
        for first in range(0, len(rows), n):
            sums, learned = judge.sums(model, to_device(rows[first : first + n], device))
            totals = {name: totals.get(name, 0.0) + float(value) for name, value in sums.items()}
            count += int(learned)
    model.train(was_training)
    return {name: total / max(1, count) for name, total in totals.items()}


@dataclass(kw_only=True)
class Trainer(Generic[M]):
    """Trains one model. Its files are in a folder: ``state.pt``, ``log.jsonl`` and, at the end, ``weights.npz``.

    Args:
        folder: of this training alone.
        build: makes the model.
        valid: held-out rows, for the log.
        judge: what is measured on them; its first measure is the loss.
        clock: when it is over, the state is saved and ``TimeIsUp`` raised.
        start: changes the weights that a new training begins with.
        steps: number of steps instead of the training's own, to repeat a run that a time budget had cut.
        save_every_s: seconds between saved states.
        say: is given lines that report progress.
    """

    folder: Path
    build: Callable[[], M]
    training: Training
    objective: Objective[M]
    judge: Judge[M]
    valid: npt.NDArray[Any]
    seed: int
    device: str
    clock: Clock
    say: Callable[[str], None]
    start: Callable[[M], None] = lambda model: None
    steps: int | None = None
    save_every_s: float = 240.0
    log_every: int = 20
    valid_every: int = 250

    def run(self) -> None:
        """Train from the beginning, or from where an earlier run was interrupted; do nothing if it is finished."""
        if (self.folder / "weights.npz").is_file():
            return
        torch.manual_seed(self.seed)
        model = self.build().to(self.device).train()
        if not (self.folder / "state.pt").is_file():
            self.start(model)
        optimizer = Optimizer(model, self.training.weight_decay)
        step, steps, before_s = 0, self.steps or self.training.steps, 0.0
        saved = self.folder / "state.pt"
        if saved.is_file():
            state = torch.load(saved, map_location=self.device, weights_only=True)
            model.load_state_dict(state["model"])
            optimizer.restore(state["optimizer"])
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
                    "optimizer": optimizer.state(),
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
                valid = self._held_out(model) if self._validates(step, steps) else {}
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
        """Return how many of the planned steps the time budget allows; all of them if ``steps`` was given."""
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

    def _held_out(self, model: M) -> dict[str, float]:
        return held_out(model, self.valid, self.device, self.judge)

    def _step(self, model: M, optimizer: Optimizer, step: int, steps: int) -> Tensor:
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

    def _log(self, step: int, steps: int, loss: float, speed: float, valid: dict[str, float], seconds: float) -> None:
        left_s = (steps - step) * self.training.step_tokens / speed
        entry = {
            "step": step,
            "steps": steps,
            "tokens": step * self.training.step_tokens,
            "loss": round(loss, 4),
            "tokens_per_s": round(speed),
            "seconds": round(seconds, 1),
        }
        entry.update({name: round(value, 4) for name, value in valid.items()})
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
        checked = "".join(f", {name.replace('_', ' ')} {value:.3f}" for name, value in valid.items())
        self.say(
            f"{self.folder.name}: step {step} of {steps}, loss {loss:.3f}{checked}, {speed:,.0f} tokens/s, "
            f"{left_s / 60:.1f} min left"
        )


def _learning_rate(training: Training, step: int, steps: int) -> float:
    """Warm-up, constant, then linear decay (Hägele et al., arXiv 2405.18392)."""
    left = min(1.0, (steps - step) / max(1.0, training.decay * steps))
    return training.learning_rate * min(1.0, (step + 1) / max(1, training.warmup)) * max(0.05, left)
