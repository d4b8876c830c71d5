"""edge-spec run: write a reply to a prompt."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from edge_spec.cli.interrupt import interruptible
from edge_spec.cli.options import (
    grammar_arguments,
    grammar_options,
    load_arguments,
    model_options,
    sampler_arguments,
    sampler_options,
)
from edge_spec.cli.prompts import argument_text, read_prompt
from edge_spec.cli.summary import summary
from edge_spec.generation.reply import Reply
from edge_spec.loading import load
from edge_spec.model import TextModel
from edge_spec.speculation.modes import MODES

__all__ = ["command"]


@click.command("run")
@model_options
@click.option("-p", "--prompt", metavar="TEXT", help="The prompt.")
@click.option("-f", "--file", metavar="FILE", help="Read the prompt from a file; - for standard input.")
@click.option("--system", metavar="TEXT", help="The system message.")
@click.option("--raw", is_flag=True, help="Continue the text as it is, without the model's chat template.")
@click.option(
    "--speculation",
    type=click.Choice(["auto", *MODES]),
    default="auto",
    show_default=True,
    help="How to draft. It changes when a token arrives, never which.",
)
@click.option("-n", "--max-tokens", type=int, metavar="N", help="Most tokens to write. [default: what fits --ctx]")
@click.option("--stop", multiple=True, metavar="TEXT", help="Ends the reply where this would appear. Repeatable.")
@click.option("--ignore-eos", is_flag=True, help="Never let the model end the reply itself.")
@click.option("--seed", type=int, metavar="N", help="Fixes the draw. [default: random, see --json]")
@grammar_options
@sampler_options()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
@click.option("--stats", is_flag=True, help="Say on standard error what speculation did.")
def command(**values: Any) -> int:
    """Write a reply to a prompt.

    MODEL is the path of a GGUF, of a published ONNX model or its folder, or the name of a family that comes with
    the package; the demo family if not given. The prompt comes from -p, from -f or from standard input.

    \b
    Examples:
      edge-spec run -p "Tell me a story about a dog."
      edge-spec run llama-3.2-3b-q4_0.gguf --draft llama-3.2-1b-q4_0.gguf -f question.txt
      edge-spec run --json-schema '{"properties": {"name": {"type": "string"}}}' -p "Name a dog."
      echo "Once upon a time" | edge-spec run --raw --temperature 0 -n 64
    """
    prompt = read_prompt(values["prompt"], values["file"])
    writing: list[Reply] = []

    def cancel() -> bool:
        for generation in writing:
            generation.cancel()
        return bool(writing)

    def work() -> Reply:
        with load(**load_arguments(values), speculation=values["speculation"]) as model:
            for note in model.notes:
                click.echo(f"edge-spec: note: {note}", err=True)
            generation = _generate(model, prompt, values)
            writing.append(generation)
            if values["as_json"]:
                generation.read()
                report = _report(model, generation, asked=values["speculation"])
                click.echo(json.dumps(report, ensure_ascii=False))
            else:
                _print(generation)
            if generation.finish_reason == "length" and grammar_arguments(values):
                click.echo("edge-spec: note: the reply was cut at -n, before its grammar came to an end", err=True)
            if values["stats"]:
                click.echo(summary(model, generation), err=True)
        return generation

    return 130 if interruptible(work, cancel).finish_reason == "cancelled" else 0


def _generate(model: TextModel, prompt: str, values: dict[str, Any]) -> Reply:
    messages = [{"role": "user", "content": prompt}]
    if values["system"] is not None:
        if values["raw"] or not model.has_chat_template:
            raise click.UsageError("--system needs a model with a chat template, and no --raw")
        messages.insert(0, {"role": "system", "content": argument_text(values["system"], "--system")})
    return model.generate(
        messages if model.has_chat_template and not values["raw"] else prompt,
        raw=values["raw"],
        max_tokens=values["max_tokens"],
        stop=[argument_text(text, "--stop") for text in values["stop"]],
        seed=values["seed"],
        ignore_eos=values["ignore_eos"],
        **grammar_arguments(values),
        **sampler_arguments(values),
    )


def _print(generation: Reply) -> None:
    """Stream the text; it ends with a newline, as text files do."""
    if hasattr(sys.stdout, "reconfigure"):
        # A terminal that lacks a character shows a substitute rather than an error.
        sys.stdout.reconfigure(errors="replace")
    last = ""
    for last in generation:
        sys.stdout.write(last)
        sys.stdout.flush()
    if not last.endswith("\n"):
        sys.stdout.write("\n")
    sys.stdout.flush()


def _report(model: TextModel, generation: Reply, *, asked: str) -> dict[str, Any]:
    statistics = generation.statistics
    return {
        "text": generation.text,
        "token_ids": generation.token_ids,
        "prompt_tokens": len(generation.prompt),
        "finish_reason": generation.finish_reason,
        "seed": generation.settings.seed,
        "lossless": model.lossless,
        "identity": model.identity,
        "profile": {"name": model.profile.name, **dict(model.profile.facts)},
        "timings": statistics.timings(),
        "speculation": {"asked": asked, "mode": model.mode, **statistics.speculation()},
    }
