"""Whether drafts change a token: kinds of weights, contexts and types of caches, on every engine.

    python benchmarks/check_matrix.py [MODEL ...] [--engines llama,onnx] [--json FILE]

Without MODEL, the demo family's target is written in every type of ``edge-spec quantize``, and the family's drafter
drafts for it. Each model is tried with contexts of 33, 200, 512 and 2,048 tokens and caches of the default type and of
16 bits: every mode writes the same replies as plain decoding, greedily and at temperature 1. Log probabilities are
compared as well, which show what tokens hide. A line per cell tells the identity that was promised, what was compared,
and what differed. Exits with 1 if anything differs where ``bitwise`` is said, and prints how many cells said
``rounding`` or could not be run.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import edge_spec
from edge_spec.errors import EdgeSpecError
from edge_spec.llama_cpp.quantize import quantizations, quantize
from edge_spec.loading import possible_modes
from edge_spec.models import inspect, resolve, resolve_family

CONTEXTS = (33, 200, 512, 2048)
CACHES = ("auto", "f16", "f32")
PROMPTS = ("One day a dog", "Tell me a story about the sea and the people who live by it.")


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What was compared of one model on one engine.

    Attributes:
        identity: what was promised; why it cannot be run, where ``replies`` is 0.
        tokens: written in all modes but plain decoding.
        differing: replies with another token or log probability than plain decoding has.
    """

    model: str
    engine: str
    n_ctx: int
    caches: str
    identity: str
    replies: int = 0
    tokens: int = 0
    differing: int = 0


def cells(model: Path, draft: Path | None, engine: str, cache_dir: Path, most: int) -> Iterator[Cell]:
    """Yield what comparing finds, by context and types of caches."""
    for n_ctx in CONTEXTS:
        for kind in CACHES:
            place: dict[str, Any] = {"model": model.name, "engine": engine, "n_ctx": n_ctx, "caches": kind}
            try:
                yield Cell(**place, **_compared(model, draft, engine, n_ctx, kind, cache_dir, most))
            except EdgeSpecError as error:
                yield Cell(**place, identity=str(error))


def _compared(
    model: Path, draft: Path | None, engine: str, n_ctx: int, kind: str, cache_dir: Path, most: int
) -> dict[str, Any]:
    given: dict[str, Any] = {
        "engine": engine,
        "n_ctx": n_ctx,
        "n_threads": 1,
        "cache_dir": cache_dir,
        "kv_k": kind,
        "kv_v": kind,
    }
    plain: list[list[tuple[int | None, float | None]]] | None = None
    identity, found = "", Counter[str]()
    for mode in ("off", *possible_modes(model, draft=draft, engine=engine), "auto"):
        with edge_spec.load(model, draft=draft, speculation=mode, **given) as opened:
            texts = [
                [(each.id, each.logprob) for each in reply.events()]
                for prompt in PROMPTS
                for temperature in (0, 1)
                for reply in [
                    opened.generate(
                        prompt,
                        raw=True,
                        temperature=temperature,
                        seed=3,
                        max_tokens=min(most, n_ctx),
                        ignore_eos=True,
                        logprobs=1,
                    )
                ]
            ]
            identity = identity or opened.identity
        if plain is None:
            plain = texts
            continue
        found["replies"] += len(texts)
        found["tokens"] += sum(map(len, texts))
        found["differing"] += sum(text != wanted for text, wanted in zip(texts, plain, strict=True))
    return {"identity": identity, **found}


def main() -> int:
    """Compare, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--engines", default="llama,onnx")
    parser.add_argument("-n", "--max-tokens", type=int, default=300)
    parser.add_argument("--json", type=Path, metavar="FILE")
    asked = parser.parse_args()
    found: list[Cell] = []
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        for model, draft in _models(asked.models, work):
            for engine in asked.engines.split(","):
                for cell in cells(model, draft, engine, work / "cache", asked.max_tokens):
                    found.append(cell)
                    print(*asdict(cell).values(), sep="\t", flush=True)
                    if asked.json is not None:
                        asked.json.write_text("".join(json.dumps(asdict(each)) + "\n" for each in found), "utf-8")
    wrong = [cell for cell in found if cell.identity == "bitwise" and cell.differing]
    tried = [cell for cell in found if cell.replies]
    print(
        f"{len(tried)} cells, {sum(cell.replies for cell in tried)} replies of {sum(cell.tokens for cell in tried):,} "
        f"tokens: {len(wrong)} cells differ where bitwise is said, {sum(c.identity == 'rounding' for c in tried)} "
        f"said rounding, {len(found) - len(tried)} could not be run"
    )
    return int(bool(wrong) or not tried)


def _models(named: list[str], folder: Path) -> Iterator[tuple[Path, Path | None]]:
    """Yield models and their drafters: those that are named, or the demo's target in every type of weights."""
    if named:
        yield from ((resolve_family(resolve(name)).target, None) for name in named)
        return
    family = resolve_family("demo")
    for kind in quantizations():
        path = folder / f"demo-{kind}.gguf"
        try:
            quantize(inspect(family.target), path, kind, requantize=True, n_threads=1)
        except EdgeSpecError as error:
            print(f"{kind}: {error}", file=sys.stderr)
            continue
        yield path, family.draft
        path.unlink()


if __name__ == "__main__":
    sys.exit(main())
