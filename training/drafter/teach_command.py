"""``python training/drafter``: write answers and teach a head on an accelerator."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import torch

from edge_spec.errors import EdgeSpecError, SettingsError
from edge_spec.models import ModelFile, inspect
from edge_spec.training.clock import Clock, TimeIsUp
from edge_spec.training.drafter.begun import begin_with
from edge_spec.training.drafter.export import export_drafter
from edge_spec.training.drafter.heads import require_head
from edge_spec.training.drafter.pack import Pack, read_pack
from edge_spec.training.drafter.teaching import Teaching, Written, own_question_tokens, read_written, write_answers
from edge_spec.training.drafter.torch_target import TorchTarget
from edge_spec.training.precision import device_of

__all__ = ["main"]

_WRITTEN_WITH = ("tokens", "answer_tokens", "seed")
"""Options that answers depend on."""

_TAUGHT_WITH = ("vocabulary", "passes", "steps_ahead", "learning_rate", "step_tokens", "row")
"""Options that may change until the teaching has saved something. Those of time, memory and device always may."""

_TAUGHT = ("state.pt", "weights.npz")

_TIME_IS_UP = 3
_NEW, _CONTINUED = 4e-3, 2e-3
"""The highest learning rate of a new head, and of one that learns on."""


def main() -> int:
    """Run the command line; returns its exit code, 3 if it was stopped and the same command continues."""
    asked = _parser().parse_args()
    writing, teaching = Clock(asked.write_s), Clock()

    def stop(number: int, frame: object) -> None:
        print("stopping; interrupt again to lose what is not saved", file=sys.stderr)
        writing.stop()
        teaching.stop()
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, stop)
    try:
        _teach(asked, writing, teaching)
    except TimeIsUp as note:
        print(f"stopped: {note}; run the same command to continue")
        return _TIME_IS_UP
    except EdgeSpecError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    finally:
        signal.signal(signal.SIGINT, before)
    return 0


def _parser() -> argparse.ArgumentParser:
    def at_least(least: int) -> Callable[[str], int]:
        def whole_number(text: str) -> int:
            if (number := int(text)) < least:
                raise argparse.ArgumentTypeError(f"{text} is less than {least}")
            return number

        return whole_number

    parser = argparse.ArgumentParser(
        prog="python training/drafter",
        description="Let a model write answers to packed prompts, and a head learn from them.",
    )
    parser.add_argument("model", type=Path, help="GGUF of the target, of llama's architecture")
    parser.add_argument("--head", type=Path, help="a head that was made for the model and learns on")
    parser.add_argument("--vocabulary", type=at_least(2), default=8192, help="tokens that a new head knows")
    parser.add_argument("--pack", type=Path, required=True, help="prompts of `edge-spec drafter pack`")
    parser.add_argument("--out", type=Path, required=True, help="folder for what is made; drafter.gguf is the result")
    parser.add_argument("--tokens", type=at_least(1), default=40_000_000, help="tokens that the model writes at most")
    parser.add_argument("--answer-tokens", type=at_least(1), default=256, help="maximum tokens of an answer")
    parser.add_argument("--passes", type=float, default=2.0, help="how often these are read at most")
    parser.add_argument("--steps-ahead", type=at_least(1), default=3, help="draft steps that the head is trained on")
    parser.add_argument("--learning-rate", type=float, help=f"the highest [default: {_NEW}, with --head {_CONTINUED}]")
    parser.add_argument("--step-tokens", type=at_least(1), default=16_384, help="tokens per update")
    parser.add_argument("--row", type=at_least(1), default=1024, help="tokens of a training row")
    parser.add_argument("--write-s", type=float, help="seconds after which no more answers are begun")
    parser.add_argument("--teach-s", type=float, help="seconds that the training may take")
    parser.add_argument("--memory-gb", type=float, default=30.0, help="for keys and values of answers")
    parser.add_argument("--device", default="auto", help="cpu, cuda, ... [default: an accelerator if there is one]")
    parser.add_argument("--seed", type=at_least(0), default=1)
    return parser


def _require_room(asked: argparse.Namespace, file: ModelFile, pack: Pack) -> None:
    """Refuse lengths that do not go together, before anything is computed."""
    n_ctx, longest = file.n_ctx_train, max(pack.longest, own_question_tokens(pack)) + asked.answer_tokens
    if asked.row > min(n_ctx, asked.step_tokens):
        raise SettingsError(
            f"--row is {asked.row}", hint=f"{file.path.name} reads up to {n_ctx} tokens, an update --step-tokens"
        )
    if longest > n_ctx:
        raise SettingsError(
            f"the longest prompt and its answer may have {longest:,} tokens, and {file.path.name} reads up to {n_ctx}",
            hint="lower --answer-tokens, or --prompt-tokens of `edge-spec drafter pack`",
        )
    if asked.head is None and asked.vocabulary > file.n_vocab:
        raise SettingsError(f"--vocabulary is {asked.vocabulary}", hint=f"{file.path.name} has {file.n_vocab} tokens")


def _written(
    asked: argparse.Namespace,
    target: TorchTarget,
    pack: Pack,
    writing: Clock,
    teaching: Clock,
    say: Callable[[str], None],
) -> Written:
    """Return the answers of this folder; the target writes those that are missing.

    Raises:
        TimeIsUp: it was interrupted; they are saved.
    """
    path, part = asked.out / "written.npz", asked.out / "writing.npz"
    if path.is_file():
        return read_written(path)
    written = write_answers(
        target,
        pack,
        n_tokens=asked.tokens,
        new=asked.answer_tokens,
        seed=asked.seed,
        memory_bytes=int(asked.memory_gb * 1e9),
        clock=writing,
        say=say,
        begun=read_written(part) if part.is_file() else None,
    )
    # An interrupt ends the teaching as well; the seconds for writing do not.
    written.save(part if teaching.over else path, len(target.output))
    if teaching.over:
        raise TimeIsUp(f"{written.n_answered:,} tokens of answers are written")
    part.unlink(missing_ok=True)
    return written


def _teach(asked: argparse.Namespace, writing: Clock, teaching: Clock) -> None:
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {line}", flush=True)

    file, head = inspect(asked.model), None if asked.head is None else inspect(asked.head)
    if head is not None:
        require_head(head, file)
    pack = read_pack(asked.pack, file)
    _require_room(asked, file, pack)
    device = device_of(asked.device, None)
    # Sums need no fixed order here: how much is written and learned depends on the clock.
    torch.use_deterministic_algorithms(False)
    # cuDNN's attention is planned anew for every shape, and here nearly every call has one of its own.
    torch.backends.cuda.enable_cudnn_sdp(False)
    target = TorchTarget(file, device=device, kind=torch.float32 if device == "cpu" else torch.float16)
    say(f"{file.path.name} is on {device}")
    training = asked.out / "training"
    begin_with(
        asked.out / "settings.json",
        {
            "target": file.fingerprint,
            "head": "" if head is None else head.fingerprint,
            "pack": sha256(asked.pack.read_bytes()).hexdigest(),
            **{name: getattr(asked, name) for name in (*_WRITTEN_WITH, *_TAUGHT_WITH)},
        },
        only=None if any((training / name).is_file() for name in _TAUGHT) else ("target", "pack", *_WRITTEN_WITH),
    )
    kept = Teaching(
        file=file,
        target=target,
        written=_written(asked, target, pack, writing, teaching, say),
        head=head,
        vocabulary=asked.vocabulary,
        folder=training,
        passes=asked.passes,
        budget_s=asked.teach_s,
        steps_ahead=asked.steps_ahead,
        learning_rate=asked.learning_rate or (_NEW if head is None else _CONTINUED),
        step_tokens=asked.step_tokens,
        row=asked.row,
        seed=asked.seed,
        device=device,
        clock=teaching,
        say=say,
    ).run()
    export_drafter(training / "weights.npz", kept, file, asked.out / "drafter.gguf")
    say(f"the head is {asked.out / 'drafter.gguf'}")
