"""The card of a drafter, from what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edge_spec.training.drafter.measure import CHAIN, KINDS
from edge_spec.training.drafter.settings import HEAD

__all__ = ["card_of", "table_of"]


def card_of(results: Mapping[str, Any]) -> str:
    """The card as Markdown, of ``results.json``."""
    made, settings, data = results["drafter"], results["settings"], results["data"]
    lines = [
        f"# A {'head' if settings['kind'] == HEAD else 'drafter'} for {results['target']['name']}",
        "",
        "Made by `edge-spec drafter make`. It drafts for this model alone and writes no text of its own; with it the "
        "model writes the same text, sooner.",
        "",
        f"- Target: `{results['target']['file']}`, {results['target']['quantisation']}, fingerprint "
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
        f"their place; tokens per round are those of chains of at most {CHAIN}, the target's own included. Speeds are "
        "of the device that made it.",
        "",
        table_of(results["measured"]),
        "",
        "The licences of the target and of the texts apply to what was learned from them.",
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
        return (
            "It began with random weights. None of the target's are in its file: rows of embeddings and output are "
            "copied when it is loaded."
        )
    if results["drafter"]["inherited"]:
        return "It began with the main directions of the target's embedding."
    return "It began with random weights."


def table_of(measured: Mapping[str, Any]) -> str:
    """Acceptance and speed as a table in Markdown."""
    lines = [
        "| text | first token | tokens per round | plain, tokens/s | chains | auto |",
        "|---|---|---|---|---|---|",
    ]
    for kind in KINDS:
        speeds = {speed["mode"]: speed for speed in measured[kind]["speeds"]}
        lines.append(
            f"| {kind} | {measured[kind]['share']:.2f} | {speeds['sequence']['mean_length']:.2f} | "
            f"{speeds['off']['tokens_per_s']:.0f} | {speeds['sequence']['speed_up']:.2f}x | "
            f"{speeds['auto']['speed_up']:.2f}x |"
        )
    return "\n".join(lines)
