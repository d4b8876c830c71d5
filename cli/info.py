"""edge-spec info: show what a model is, and what fits it."""

from __future__ import annotations

import os
from typing import Any

import click

from edge_spec.cli.folders import model_argument, model_dir_option, models_in
from edge_spec.cli.help import Verb, option
from edge_spec.cli.output import print_json
from edge_spec.cli.printing import echo
from edge_spec.cli.wording import sampling_in_words
from edge_spec.controller.drafter_choice import why_passed_over
from edge_spec.engines.registry import AUTO, engine
from edge_spec.library.description import Description, candidates_for, describe
from edge_spec.library.stores import name_of
from edge_spec.memory import format_size
from edge_spec.models import resolve_family
from edge_spec.models.heads import head_of, is_head
from edge_spec.sampling import SamplerSettings

__all__ = ["command"]

_BY = {"file": ", as the file recommends", "edge-spec": ", which edge-spec recommends for this very file"}


@click.command("info", cls=Verb)
@model_argument()
@option("Output", "--json", "as_json", is_flag=True, help="Print one JSON object.")
@model_dir_option
def command(model: str | os.PathLike[str] | None, as_json: bool, model_dir: str | None) -> int:
    """Show what a model is, which engine runs it, and which drafters fit it.

    Only its header is read. Drafters are looked for beside the file, in its family, in the model folder and those of
    other programs, and among those that "edge-spec pair" has chosen and "edge-spec drafter make" has made.

    \b
    Examples:
      edge-spec info
      edge-spec info llama-3.2-3b-q4_0.gguf --json
    """
    family = resolve_family(model)
    found = describe(family.target, candidates=candidates_for(family, models_in(model_dir), os.environ))
    if as_json:
        print_json({"name": name_of(model), **_as_json(found)})
    else:
        for name, said in (("name", name_of(model)), *_rows(found)):
            echo(f"{name:<16} {said}".rstrip())
    return 0


def _as_json(found: Description) -> dict[str, Any]:
    file = found.file
    sampling = SamplerSettings.valid(file.sampling)
    return {
        "title": file.name,
        "path": str(file.path),
        "architecture": file.architecture,
        "head": found.head,
        "mtp_layers": found.n_mtp_layers,
        "parameters": file.n_params,
        "quantization": file.quantization,
        "bytes": found.file_bytes,
        "layers": file.n_layers,
        "trained_context": file.n_ctx_train,
        "sliding_window": file.sliding_window,
        "tokens": file.n_vocab,
        "tokenizer": file.vocabulary.kind,
        "chat_template": file.chat_template is not None,
        "license": file.license,
        "sampling": sampling,
        "sampling_by": file.sampling_by if sampling else "",
        "engines": dict(found.obstacles),
        "state_bytes": file.state_bytes,
        "taken_back": dict(found.taken_back),
        "disk_bytes": dict(found.disk_bytes),
        "drafters": [
            {
                "path": str(drafter.path),
                "name": drafter.name,
                "bytes": drafter.weight_bytes,
                "head": head_of(drafter),
            }
            for drafter in found.drafters
        ],
        "chosen": [
            {"engine": choice.engine, "path": str(choice.path), "there": choice.path.is_file(), **choice.measured}
            for choice in found.choices
        ],
    }


def _rows(found: Description) -> list[tuple[str, str]]:
    file = found.file
    size = f"{file.n_params / 1e6:,.1f}M parameters, {file.quantization}, {format_size(found.file_bytes)}"
    window = f", of which some layers see the last {file.sliding_window:,}" if file.sliding_window else ""
    rows = [("file", str(file.path)), ("title", file.name), ("architecture", f"{file.architecture}, {size}")]
    if found.head:
        known = "" if is_head(found.file) else ", in a way that is not supported yet"
        rows.append(("kind", f"{found.head}: it reads another model's hidden states{known}"))
    if file.head is not None and file.trimmed is None:
        layers = ", ".join(map(str, file.head.layers)) if file.head.layers else "2, half of all, and 3 before the end"
        reads = f"reads its layers {layers}"
        if file.head.is_mtp:
            reads = f"reads what goes out of its last layer, number {layers}"
        drafts = f"{file.head.n_rows:,} of {file.n_vocab:,} tokens" if file.n_vocab else f"{file.head.n_rows:,} tokens"
        rows.append(("made for", f"a model of width {file.head.width}; {reads}; drafts {drafts}"))
    if file.trimmed is not None:
        rows.append(("kind", "a drafter with a part of its target's tokens"))
        made_for = file.trimmed.target
        rows.append(("made for", f"{made_for}, in any type of weights" if made_for else "one file alone"))
    if found.n_mtp_layers and not found.head:
        why = why_passed_over(file.path, file, AUTO)
        told = "drafts unless another drafter is named" if why is None else f"is not used: {why}"
        rows.append(("MTP layers", f"{found.n_mtp_layers}, which {told}"))
    sampling = SamplerSettings.valid(file.sampling)
    trained = f"{file.n_ctx_train:,} tokens{window}" if file.n_ctx_train else "the file does not say"
    tokenizer = f", tokenizer {file.vocabulary.kind}" if file.vocabulary.kind else ""
    rows += [
        ("trained context", trained),
        ("vocabulary", f"{file.n_vocab:,} tokens{tokenizer}"),
        ("chat template", "yes" if file.chat_template else "none: it continues text"),
        ("sampling", f"{sampling_in_words(sampling)}{_BY[file.sampling_by]}" if sampling else "edge-spec's defaults"),
        ("license", file.license or "the file does not say"),
    ]
    for number, (name, why) in enumerate(found.obstacles.items()):
        written = found.disk_bytes.get(name)
        copied = f", on a copy that takes {format_size(written)} of the disk" if written else ""
        rows.append(("" if number else "engines", f"{name} ({engine(name).title}): {why or 'runs it'}{copied}"))
    if file.state_bytes:
        said = ", ".join(_going_back(name, n) for name, n in found.taken_back.items())
        rows.append(("recurrent state", "; ".join(filter(None, (format_size(file.state_bytes), said)))))
    for number, drafter in enumerate(found.drafters):
        kind = head_of(drafter)
        said = f"{drafter.path} ({format_size(drafter.weight_bytes)}{', ' if kind else ''}{kind})"
        rows.append(("" if number else "drafters", said))
    for choice in found.choices:
        faster = ", {:.2f} times as fast as plain decoding here ({:.2f} to {:.2f})"
        measured = faster.format(*choice.speed_up) if choice.speed_up else ""
        gone = "" if choice.path.is_file() else "; the file is gone, `edge-spec pair` finds another one"
        rows.append(("chosen", f"{choice.path} (--engine {choice.engine}{measured}){gone}"))
    if not found.drafters and not found.head:
        rows.append(("drafters", "none found; a small model of the same family, or `edge-spec drafter make`"))
    return rows


def _going_back(name: str, n: int) -> str:
    """Print how many drafted tokens an engine can roll back in a recurrent model."""
    if n == 0:
        return f"{engine(name).title} takes back no drafts"
    return f"{engine(name).title} takes back drafts of up to {n} tokens"
