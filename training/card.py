"""The family's card and manifest, from the results of training and evaluation."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from edge_spec.training.sources import sources_of

__all__ = ["FILES", "card_of", "write_manifest"]

FILES = {"target": "target-q4_0.gguf", "intermediate": "intermediate-q4_0.gguf", "draft": "drafter-q4_0.gguf"}
"""File of each role in the family's folder."""


def write_manifest(folder: Path) -> None:
    """Write ``family.json``: which file has which role."""
    (folder / "family.json").write_text(json.dumps(FILES, indent=2) + "\n", encoding="utf-8")


def card_of(results: Mapping[str, Any], setting: Mapping[str, Any], corpus: Mapping[str, Mapping[str, int]]) -> str:
    """Return the card as Markdown.

    Args:
        results: what the stage ``evaluate`` has found.
        setting: as ``Setting.as_json`` returns it.
        corpus: per source documents, tokens and bytes.
    """
    return (
        "\n\n".join(
            [
                "# The demo family",
                "Three small English language models that share one vocabulary, so that edge-spec can show hierarchical "
                "speculative decoding without a download. They were trained from scratch for this project by "
                f"`edge_spec.training`, setting `{setting['name']}`. They exist to demonstrate and test; for useful answers, give "
                "edge-spec a real model.",
                _models(results, setting),
                f"- Architecture: `llama` with tied embeddings, RMSNorm, rotary positions, SwiGLU, grouped-query attention.\n"
                f"- Weights: Q4_0 in the layers, Q8_0 for the embeddings, F32 for the norms. The last "
                f"{setting['trainings']['target']['quantized']:.0%} of each training used these rounded weights."
                f"\n- Context: {setting['row']:,} tokens{_short_rows(setting)}.\n"
                f"- Vocabulary: byte-level BPE, {setting['n_vocab']:,} tokens, every digit alone. Ids 0 to 3 are end of text, "
                "`<|im_start|>`, `<|im_end|>` and padding.\n"
                "- Conversations use the ChatML template that is stored in each file.\n"
                "- `family.json` says which file has which role; `training_log.json` has the losses during training.",
                "## Losses",
                "On held-out text of all sources, computed by llama.cpp from the files. F16 is the same checkpoint without "
                "rounding.",
                _losses(results),
                _agreement(results),
                "## Acceptance",
                "Share of the target's own tokens that a smaller model picks when it reads the target's text, "
                f"{results['acceptance_prompts']} prompts of `{results['acceptance_file']}`, which were not trained on, up "
                "to 64 tokens each, all models in Q4_0. At temperature "
                "0.8 target and drafter share their noise; other sampler settings are edge-spec's defaults.",
                _acceptance(results),
                "## Conversations",
                f"Unedited, as `edge-spec chat --engine llama --seed 1 -n {results['max_answer_tokens']}` has them at its "
                "default temperature of 0.8; other processors and engines round differently, so the words may differ there. "
                "Answers are cut off after that many tokens; most end before.",
                *_conversations(results["conversations"]),
                "## Limits",
                "It knows next to nothing: facts, numbers, names and commands in its answers are mostly invented, sums are "
                "mostly wrong. It loses the thread after a few sentences, understands only English, and has had no safety "
                "training. Do not rely on anything it says, least of all on medical matters, some of which were in its "
                "training text.",
                "## Training data",
                f"{sum(each['bytes'] for each in corpus.values()) / 1e6:.0f} MB of English text, "
                f"{sum(each['tokens'] for each in corpus.values()) / 1e6:.1f} million tokens. "
                "The data itself is not part of this package.",
                _sources(corpus, setting["weights"]),
                "Thanks to everyone who made and shared these texts.",
            ]
        )
        + "\n"
    )


def _short_rows(setting: Mapping[str, Any]) -> str:
    short = setting.get("short_row")
    return f"; {setting['short_share']:.0%} of the steps on text read rows of {short:,}" if short else ""


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(head), *map(list, rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _models(results: Mapping[str, Any], setting: Mapping[str, Any]) -> str:
    rows = []
    for role, file in FILES.items():
        shape, model = setting["shapes"][role], results["models"][role]
        rows.append(
            [
                role,
                f"`{file}`",
                f"{model['file_bytes'] / 1e6:.1f} MB",
                f"{model['n_params'] / 1e6:.1f} M",
                f"{shape['n_layers']} × {shape['n_embd']}",
                f"{shape['n_head']} / {shape['n_head_kv']}",
                f"{model['tokens'] / 1e6:.1f} M",
                f"{model['seconds'] / 60:.0f} min",
            ]
        )
    head = ("role", "file", "size", "parameters", "layers × width", "heads / KV heads", "training tokens", "time")
    return _table(head, rows)


def _losses(results: Mapping[str, Any]) -> str:
    rows = []
    for role in FILES:
        f16, q4_0 = results["models"][role]["F16"], results["models"][role]["Q4_0"]
        rows.append(
            [
                role,
                *(f"{f16[key]:.3f} / {q4_0[key]:.3f}" for key in ("loss", "perplexity", "bits_per_byte")),
                f"{100 * (q4_0['loss'] / f16['loss'] - 1):+.1f} %",
            ]
        )
    return _table(("role", "nats per token, F16 / Q4_0", "perplexity", "bits per byte", "loss from rounding"), rows)


def _agreement(results: Mapping[str, Any]) -> str:
    logits = [
        f"{model['logits_differ']['F32']:.0e} and {model['logits_differ']['F16']:.4f} ({role})"
        for role, model in results["models"].items()
    ]
    said = (
        "PyTorch, which trained them, and llama.cpp agree: logits of files in F32 and F16 differ by at most "
        f"{', '.join(logits)}; with F16 weights, llama.cpp rounds what it multiplies by them as well."
    )
    if "texts" in results:
        same = results["texts"] - results["differing_texts"]
        said += f" Token ids are the same for {same:,} of {results['texts']:,} texts."
    return said


def _acceptance(results: Mapping[str, Any]) -> str:
    names = {
        "intermediate": "intermediate",
        "draft": "draft",
        "intermediate-plain": "intermediate, trained without the target",
        "draft-plain": "draft, trained without the target",
    }
    found = results["acceptance"]
    rows = [
        [text, *(f"{found[name][kind]['share']:.2f}" for kind in ("greedy", "temperature 0.8"))]
        for name, text in names.items()
        if name in found
    ]
    return _table(("", "greedy text", "text drawn at temperature 0.8"), rows)


def _conversations(conversations: Iterable[Iterable[Mapping[str, str]]]) -> Iterable[str]:
    for messages in conversations:
        lines = []
        for message in messages:
            who = "User" if message["role"] == "user" else "Model"
            lines.append(f"> **{who}:** " + message["content"].replace("\n", "\n> "))
        yield "\n>\n".join(lines)


def _sources(corpus: Mapping[str, Mapping[str, int]], weights: Mapping[str, float]) -> str:
    rows = [
        [source.name, source.license, source.what, f"{corpus[name]['tokens'] / 1e6:.2f} M", f"{weights.get(name, 1):g}"]
        for name, source in zip(corpus, sources_of(corpus), strict=True)
    ]
    return _table(("source", "license", "what", "tokens", "times per epoch"), rows)
