"""One step of ``budget_sweep.py`` in a process of its own: ``python budget_session.py STEP``, which prints JSON.

Steps are ``plans`` (every plan that would be chosen, from the largest budget to the smallest), ``run`` (one of them)
and ``naive``.
"""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from memory_session import Reader, another_plan, forget_peak, held_bytes, peak_resident_bytes
from naive_speculation import open_naive, write, write_plainly

import edge_spec.loading as loading
from edge_spec.errors import BudgetExceeded
from edge_spec.llama_cpp.library import library
from edge_spec.memory import usage
from edge_spec.memory.budget import Budget

_UNLIMITED = 1 << 40


def plans(step: dict[str, Any]) -> dict[str, Any]:
    """Return what is planned under every budget: each is one byte less than the previous plan needs."""
    held = held_bytes(step["load"])
    found: list[dict[str, Any]] = []
    budget = _UNLIMITED
    while True:
        try:
            chosen = loading.plan(memory=budget, held_bytes=held, **step["load"]).chosen
        except BudgetExceeded:
            return {"held_bytes": held, "plans": found}
        found.append(
            {
                "what": chosen.described,
                "kind": f"{chosen.stage} {chosen.choices.get('kv', '')}",
                "needed_bytes": chosen.needed_bytes,
                "predicted_bytes": chosen.peak_bytes - chosen.parts["target"].weight_bytes,
                "weight_bytes": chosen.parts["target"].weight_bytes,
            }
        )
        budget = chosen.needed_bytes - 1


def run(step: dict[str, Any]) -> dict[str, Any]:
    """Load under a budget, reply to the prompts, then fill the context as far as asked."""
    # This process may hold a little more or less than the one that planned; a share is added for that.
    held = held_bytes(step["load"])
    more = held - step["held_bytes"]
    budget = Budget(budget_bytes=step["needed_bytes"] + more + abs(more) // 50 + 1, held_bytes=held)
    setattr(loading, "budget_of", lambda memory: budget)  # noqa: B010
    forget_peak()
    with loading.load(memory=budget.budget_bytes, **step["load"]) as model:
        reader = Reader(model)
        if step["prompts"]:
            reader.read(model.generate(step["prompts"][0], max_tokens=16, temperature=0, ignore_eos=True))
        n_tokens, seconds, rounds = 0, 0.0, 0
        for prompt in step["prompts"]:
            reply = reader.read(model.generate(prompt, max_tokens=step["tokens"], temperature=0, ignore_eos=True))
            n_tokens += reply.statistics.tokens
            seconds += reply.statistics.decode_s
            rounds += reply.statistics.rounds
        if step["fill"]:
            n_prompt = min(step["fill"], model.n_ctx) - 16
            tokens = [300 + place % 7000 for place in range(n_prompt)]
            reply = reader.read(model.generate(tokens=tokens, max_tokens=15, temperature=0, ignore_eos=True))
            read_s = reply.statistics.prefill_s
        model.ledger.check_integrity()
        found: dict[str, Any] = {"read_tokens_per_s": n_prompt / read_s} if step["fill"] else {}
        found |= {"peak_bytes": peak_resident_bytes(), "more_bytes": more}
        found |= {"mode": model.mode, "notes": list(model.notes)}
    found["degradations"] = reader.degradations + another_plan(step["what"], budget.budget_bytes, held, step["load"])
    if step["prompts"]:
        found |= {"tokens_per_s": n_tokens / seconds, "tokens_per_round": n_tokens / rounds}
    return found


def naive(step: dict[str, Any]) -> dict[str, Any]:
    """The same prompts, with llama.cpp's defaults."""
    asked = step["load"]
    library()
    with ExitStack() as stack:
        target = open_naive(stack, Path(asked["model"]))
        draft = open_naive(stack, Path(asked["draft"]))
        loaded = usage().resident_bytes
        forget_peak()
        for model in (target, draft):
            model.start(n_ctx=asked["n_ctx"], n_threads=asked["n_threads"])
        write(target, draft, target.tokenize("Once"), 8)
        done = [write(target, draft, target.tokenize(prompt), step["tokens"]) for prompt in step["prompts"]]
        if step["fill"]:
            tokens = [300 + place % 7000 for place in range(min(step["fill"], asked["n_ctx"]) - 16)]
            write(target, draft, tokens, 8)
        peak = peak_resident_bytes()
        plain = [write_plainly(target, target.tokenize(prompt), step["tokens"]) for prompt in step["prompts"]]
        # The last round may write more tokens than asked for.
        same = [text[: step["tokens"]] == other for (text, _), other in zip(done, plain, strict=True)]
        found: dict[str, Any] = {
            "peak_bytes": peak,
            "same_texts": sum(same),
            "texts": len(same),
            "reserved_bytes": loaded + target.reserved_bytes + draft.reserved_bytes,
        }
    if done:
        found["tokens_per_s"] = sum(len(text) for text, _ in done) / sum(seconds for _, seconds in done)
    return found


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    print(json.dumps({"plans": plans, "run": run, "naive": naive}[asked["step"]](asked)))
