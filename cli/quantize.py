"""edge-spec quantize: write a model in another type of weights."""

from __future__ import annotations

from pathlib import Path

import click

from edge_spec.cli.folders import ModelName, model_dir_option
from edge_spec.cli.help import Verb, option
from edge_spec.cli.interrupt import interruptible
from edge_spec.cli.options import threads_option
from edge_spec.cli.output import Bar
from edge_spec.cli.printing import echo
from edge_spec.llama_cpp.quantize import part_of, quantize
from edge_spec.memory import format_size
from edge_spec.models import inspect, resolve
from edge_spec.options import require_whole

__all__ = ["command"]


@click.command("quantize", cls=Verb)
@click.argument("model", type=ModelName())
@click.argument("out", type=click.Path(dir_okay=False))
@option("Output", "--type", "kind", required=True, metavar="TYPE", help="Such as Q4_0, Q4_K_M or Q8_0.")
@option("Output", "--requantize", is_flag=True, help="Accept a MODEL that is quantized already, which loses more.")
@threads_option()
@model_dir_option
def command(
    model: str,
    out: str,
    kind: str,
    requantize: bool,
    n_threads: int | None,
    model_dir: str | None,
) -> int:
    """Write the GGUF MODEL as OUT, with weights of another type.

    llama.cpp does it, by its own recipes: Q4_K_M keeps some matrices in Q6_K. Q4_0 is the fastest on most processors,
    Q4_K_M a little closer to the original. Give the F16 or BF16 file of a model. TQ1_0, TQ2_0, Q2_0 and Q1_0 are for
    models that were trained in three or two values.

    \b
    Example:
      edge-spec quantize smollm2-360m-f16.gguf smollm2-360m-q4_0.gguf --type Q4_0
    """
    require_whole("n_threads", n_threads or 0, 0, 1 << 16)
    source, path, bar = inspect(resolve(model)), Path(out), Bar()

    def work() -> int:
        n_bytes = quantize(
            source,
            path,
            kind.upper(),
            n_threads=n_threads or 0,
            requantize=requantize,
            on_progress=lambda done, total: bar("quantizing", done, total),
        )
        echo(f"{path}: {format_size(n_bytes)}, was {format_size(source.weight_bytes)}")
        return 0

    def cancel() -> bool:
        bar.close()
        part_of(path).unlink(missing_ok=True)
        return False

    return interruptible(work, cancel)
