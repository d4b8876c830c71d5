"""Structured output of the demo family: whether it is valid, equal in every mode, and what forced tokens gain.

    python benchmarks/structured_output.py [replies per schema]

Every schema of ``tests/support/json_schemas.py`` is used with that many seeds (20) in every mode. Per mode: how many
replies parse and validate, how many equal plain decoding token for token, and the mean accepted length with and
without drafting the tokens that the grammar forces. Counts, not seconds.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema

import edge_spec
from edge_spec import Drafter, Mode
from edge_spec.speculation.modes import MODES, DraftModels

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from json_schemas import SCHEMAS

_MODES = ("off", "ngram", "sequence", "tree", "hierarchy")


def _is_valid(text: str, schema: dict[str, Any]) -> bool:
    try:
        jsonschema.validate(json.loads(text), schema, format_checker=jsonschema.FormatChecker())
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


def unguided(mode: Mode) -> Mode:
    """A mode whose drafts no grammar guides: what guiding brings is the difference."""

    def build(models: DraftModels) -> Drafter:
        drafter = mode.build(models)
        drafter.takes_guidance = False
        return drafter

    return replace(mode, build=build)


def main(n_seeds: int) -> None:
    plain: dict[tuple[str, int], list[int]] = {}
    print(
        f"{'mode':10} {'drafts':10} {'replies':>7} {'valid':>6} {'equal':>6} {'tokens':>7} {'rounds':>7} "
        f"{'length':>7} {'drafted':>8} {'accepted':>8}"
    )
    for mode in _MODES:
        for forces in (True, False) if mode != "off" else (False,):
            counts: Counter[str] = Counter()
            chosen = MODES[mode] if forces else unguided(MODES[mode])
            with edge_spec.load("demo", speculation=chosen, n_ctx=768, n_threads=1) as model:
                for name, schema in SCHEMAS.items():
                    for seed in range(n_seeds):
                        reply = model.generate(
                            f"Tell me something about a {name}.", json_schema=schema, seed=seed, max_tokens=700
                        )
                        text = reply.read()
                        counts["replies"] += 1
                        counts["valid"] += reply.finish_reason == "eos" and _is_valid(text, schema)
                        counts["equal"] += plain.setdefault((name, seed), reply.token_ids) == reply.token_ids
                        for what in ("tokens", "rounds", "drafted", "accepted"):
                            counts[what] += getattr(reply.statistics, what)
            print(
                f"{mode:10} {'forced too' if forces else 'as usual':10} {counts['replies']:7} {counts['valid']:6} "
                f"{counts['equal']:6} {counts['tokens']:7} {counts['rounds']:7} "
                f"{counts['tokens'] / counts['rounds']:7.2f} {counts['drafted']:8} {counts['accepted']:8}",
                flush=True,
            )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
