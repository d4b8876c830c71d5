"""Measures how many drafted tokens are accepted: alone, in company, and after texts were pushed out of their cells.

    python benchmarks/company_acceptance.py [MODEL] [--speculation sequence] [--answers 4,16] [--prompts 16] [--rows 64]

The same answers to prompts of the package are written alone, and as many together as asked for. Then conversations ask
two questions in turn, with cells for all, and with cells for one: before its second answer each text has been pushed
out and brought back. Printed are the share of drafted tokens that became text, by depth as well, and tokens per round.
The texts are compared, and a difference is an error. Decodes have 64 rows: with the usual 16, sixteen texts leave none
for drafts.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import edge_spec
from edge_spec.cli.check import prompts_or_own
from edge_spec.speculation.statistics import Statistics


def _told(name: str, done: Iterable[Statistics]) -> None:
    done = list(done)
    drafted, accepted = sum(each.drafted for each in done), sum(each.accepted for each in done)
    drafted_at, accepted_at = Counter[int](), Counter[int]()
    for each in done:
        drafted_at.update(each.drafted_at)
        accepted_at.update(each.accepted_at)
    depths = " ".join(f"{accepted_at[depth] / drafted_at[depth]:.3f}" for depth in sorted(drafted_at)[:6])
    length = sum(each.tokens for each in done) / sum(each.rounds for each in done)
    print(f"{name:32} {accepted / max(1, drafted):10.4f} {drafted:8} {length:9.3f}  {depths}", flush=True)


def _loaded(options: argparse.Namespace) -> edge_spec.TextModel:
    return edge_spec.load(
        options.model, engine="onnx", speculation=options.speculation, n_ctx=1024, max_rows=options.rows
    )


def _together(
    model: edge_spec.TextModel, prompts: Sequence[str], n: int, asked: dict[str, Any]
) -> list[edge_spec.Reply]:
    answers: list[edge_spec.Reply] = []
    for first in range(0, len(prompts), n):
        replies = model.generate_many(prompts[first : first + n], **asked)
        replies.read()
        answers += replies.answers
    return answers


def _conversations(
    options: argparse.Namespace, prompts: Sequence[str], *, is_tight: bool
) -> tuple[list[Statistics], list[str]]:
    """Return what speculation did in second answers, and the texts."""
    with _loaded(options) as model:
        if is_tight:
            model.ledger.claim("benchmark", "the rest", max(0, (model.ledger.left_bytes or 0) - 1000))
        chats = [
            model.chat(seed=number, max_tokens=options.tokens, **options.sampler) for number in range(len(prompts))
        ]
        for chat, prompt in zip(chats, prompts, strict=True):
            chat.send(prompt).read()
        done, texts = [], []
        for chat in chats:
            reply = chat.send("Tell me more about that.")
            texts.append(reply.read())
            if reply.finish_reason == "memory":
                raise SystemExit("an answer ended early for memory; free some")
            done.append(reply.statistics)
        print(f"    {model.cells['all']} cells, {model.evicted_cells} evicted")
    return done, texts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--speculation", default="sequence")
    parser.add_argument("--answers", default="4,16", help="how many at once")
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--rows", type=int, default=64, help="of a decode")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=0.0)
    options = parser.parse_args()
    options.sampler = {"temperature": options.temperature, "dry_multiplier": 0.0, "repeat_penalty": 1.0}
    asked = {"seed": 1, "max_tokens": options.tokens, "ignore_eos": True, **options.sampler}
    prompts = [each.text for each in prompts_or_own(None)][: options.prompts]
    print(f"{'':32} {'acceptance':>10} {'drafted':>8} {'per round':>9}  by depth")
    with _loaded(options) as model:
        expected: list[list[int]] = []
        for n in (1, *map(int, options.answers.split(","))):
            answers = _together(model, prompts, n, asked)
            _told(f"{n} at once", (each.statistics for each in answers))
            expected = expected or [each.token_ids for each in answers]
            if [each.token_ids for each in answers] != expected:
                raise SystemExit(f"{n} at once differ from the same alone")
    kept, texts = _conversations(options, prompts, is_tight=False)
    _told("second answers, kept", kept)
    evicted, same = _conversations(options, prompts, is_tight=True)
    _told("second answers, pushed out", evicted)
    if texts != same:
        raise SystemExit("conversations that were pushed out differ")


if __name__ == "__main__":
    main()
