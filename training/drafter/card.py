"""The card of a drafter, from what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edge_spec.training.drafter.measure import FORCED, KINDS
from edge_spec.training.drafter.settings import HEAD
from edge_spec.training.drafter.verdict import verdict_of

__all__ = ["card_of", "table_of"]


def card_of(results: Mapping[str, Any]) -> str:
    """Return the card as Markdown, of ``results.json``."""
    made, settings, data = results["drafter"], results["settings"], results["data"]
    lines = [
        f"# A {'head' if settings['kind'] == HEAD else 'drafter'} for {results['target']['name']}",
        "",
        "Made by `edge-spec drafter make`. It drafts for this model alone and writes no text of its own; with it the "
        "model writes the same text, sooner.",
        "",
        f"- Target: `{results['target']['file']}`, {results['target']['quantization']}, fingerprint "
        f"`{results['target']['fingerprint']}`",
        f"- Drafter: {_what_it_is(results)}",
        f"- Vocabulary: {made['n_kept']:,} of the target's {results['target']['n_vocab']:,} tokens, which are "
        f"{data['coverage']:.1%} of what it wrote",
        f"- Learned from: {data['answer_tokens']:,} tokens in {data['texts']:,} answers of the target itself, to each "
        f"prompt one that is greedy, the others at temperatures 0.8 and 1{_read(data)}",
        f"- Read: {settings['passes']:g} times",
        f"- Asked: prompts drawn from {data['prompts']:,} in the texts that were given, and questions that the target "
        "asked itself where it has a chat template",
        f"- Time: {results['seconds'].get('answers', 0) / 60:.0f} minutes of writing, "
        f"{results['seconds'].get('train', 0) / 60:.0f} minutes of training",
        f"- {_how_it_began(results)}",
        "",
        "## Acceptance and speed",
        "",
        f"On {data['held_out']} prompts that it has not learned from, at most {results['max_tokens']} tokens each, on "
        f"{results['engine']}. The first column is the share of the target's own tokens that the drafter picks in "
        "their place; tokens per round are those of chains and trees of that many drafted tokens, the target's own "
        "token included. Speeds are of the device that made it, against plain decoding, with intervals of 95 %.",
        "",
        table_of(results["measured"]),
        "",
        verdict_of(results["measured"]),
        "",
        "The licenses of the target and of the texts apply to what was learned from them.",
    ]
    return "\n".join(lines) + "\n"


def _what_it_is(results: Mapping[str, Any]) -> str:
    made, settings = results["drafter"], results["settings"]
    size = f"{made['n_params'] / 1e6:.1f} million weights", f"{made['file_bytes'] / 1e6:.1f} MB in 4 bits"
    if settings["kind"] != HEAD:
        return f"{size[0]}, {settings['layers']} layers of {settings['width']}, {size[1]} (embeddings in 8)"
    layers = ", ".join(map(str, made["target_layers"]))
    return (
        f"a head (EAGLE-3, arXiv 2503.01840), {size[0]} in one layer, {size[1]}; it reads what goes into layers "
        f"{layers} of the target, and was trained up to {settings['steps_ahead']} tokens behind it"
    )


def _read(data: Mapping[str, Any]) -> str:
    if not data.get("read_tokens"):
        return ""
    tokens, texts = data["read_tokens"], data["read_texts"]
    return f"; and {tokens:,} tokens in {texts:,} answers that others wrote, of which it said what it had expected"


def _how_it_began(results: Mapping[str, Any]) -> str:
    if results["settings"]["kind"] == HEAD:
        before = results["drafter"]["continued"]
        start = f"the weights of the head `{before}`" if before else "random weights"
        return (
            f"It began with {start}. None of the target's are in its file: rows of embeddings and output are copied "
            "when it is loaded."
        )
    if results["drafter"]["inherited"]:
        return "It began with the main directions of the target's embedding."
    return "It began with random weights."


def table_of(measured: Mapping[str, Any]) -> str:
    """Acceptance and speed as tables in Markdown."""
    forced = [name for name in FORCED if all(name in measured[kind]["tokens_per_round"] for kind in KINDS)]
    acceptance = [["text", "first token", *(f"tokens per round, {name}" for name in forced), "draft step"]]
    modes = [speed["mode"] for speed in measured[next(iter(KINDS))]["speeds"] if speed["mode"] != "off"]
    speed_ups = [["text", "plain, tokens/s", *modes]]
    for kind in KINDS:
        found = measured[kind]
        rounds = [f"{found['tokens_per_round'][name]:.2f}" for name in forced]
        acceptance.append([kind, f"{found['share']:.2f}", *rounds, f"{found['step']:.2f} of a step of the target"])
        speeds = {speed["mode"]: speed for speed in found["speeds"]}
        ups = [_speed_up(speeds[mode]) for mode in modes]
        speed_ups.append([kind, f"{speeds['off']['tokens_per_s']:.0f}", *ups])
    return f"{_lines_of(acceptance)}\n\n{_lines_of(speed_ups)}"


def _speed_up(speed: Mapping[str, Any]) -> str:
    low, high = speed["interval"]
    return f"{speed['speed_up']:.2f}x ({low:.2f}-{high:.2f})"


def _lines_of(rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])
