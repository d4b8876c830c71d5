"""Tries every architecture that llama.cpp knows: modes, conversations, saving, contexts that are full.

    python benchmarks/architectures.py SOURCE FOLDER [--only REGEX] [--processes 2] [--tokens 600]

SOURCE and FOLDER are those of ``architecture_models.py``, which makes the models: small, with random weights, which
write texts that hardly repeat themselves and accept nothing that another model drafts. So the drafts are the target's
own recorded text with errors put in (``recorded_drafts.py``).

Each model is tried in a process of its own, since the library ends the process where it fails. Three prompts at
temperatures 0 and 1 are answered without drafts and in every mode; a conversation with retries, edits and returns is
led, saved and loaded, and another one outgrows its context; prompts are asked that begin like earlier ones. All of it
must be what it is without drafts where ``identity`` is ``bitwise``. Printed are a line for each model and the sums;
any ended process or difference makes the exit code 1.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from recorded_drafts import recorded_mode

import edge_spec
from edge_spec.errors import EdgeSpecError, UnsupportedModel
from edge_spec.generation.reply import Reply
from edge_spec.speculation.modes import Mode

PROMPTS = (
    "Once upon a time there was a dog",
    "Question: what is the capital of France? Answer:",
    "The rain in Spain stays mainly in the plain, and the snow on the hills melts late in the year. " * 8,
)
QUESTIONS = ("Tell me a story about a dog.", "And then?", "What is it called?", "Why?")
TEMPERATURES = (0.0, 1.0)
N_CTX, SHORT_CTX = 1024, 320
ACCURACY, LIMIT = 0.75, 3
_TIMEOUT = 3600

Tokens = list[list[int]]
Report = dict[str, Any]


# --- one model


class Trial:
    """A model file, tried in every way."""

    def __init__(self, path: Path, n_tokens: int) -> None:
        self._path = path
        self._n_tokens = n_tokens
        self.report: Report = {"name": path.stem, "differences": []}

    def run(self) -> None:
        """Fill ``report``."""
        with self._loaded("off") as model:
            can = model.followed["target"].model.capabilities
            self.report |= {
                "identity": model.identity,
                "widths": list(can.widths),
                "rows": can.max_rows,
                "rollback": can.rollback,
                "trees": can.takes_trees,
                "notes": list(model.notes),
            }
            plain = [tokens for reply in self._asked(model) for tokens in [_tokens(reply)]]
            self.report["distinct"] = min(len(set(tokens)) for tokens in plain)
        self._modes(plain, model.n_vocab, trees=can.takes_trees, drafts=can.rollback > 0)
        self._conversations(model.n_vocab)
        self._earlier_texts(plain)

    def _loaded(self, mode: str | Mode, **values: Any) -> edge_spec.TextModel:
        asked: dict[str, Any] = {"engine": "llama", "n_threads": 1, "n_ctx": N_CTX, "memory": "4GiB"}
        return edge_spec.load(self._path, speculation=mode, **(asked | values))

    def _asked(self, model: edge_spec.TextModel, **values: Any) -> Iterator[Reply]:
        for seed, prompt in enumerate(PROMPTS):
            for temperature in TEMPERATURES:
                reply = model.generate(
                    prompt,
                    raw=True,
                    seed=seed,
                    temperature=temperature,
                    max_tokens=self._n_tokens,
                    ignore_eos=True,
                    **values,
                )
                reply.read()
                yield reply

    def _modes(self, plain: Tokens, n_vocab: int, *, trees: bool, drafts: bool) -> None:
        """Every mode writes the same; what came of the recorded drafts."""
        modes: list[tuple[str | Mode, dict[str, Any]]] = [("ngram", {}), ("auto", {})]
        if drafts:
            modes += [(recorded_mode(plain, n_vocab, accuracy=ACCURACY, limit=LIMIT), {})]
            modes += [("sequence", {"draft": self._path}), ("auto", {"draft": self._path})]
            modes += [("hierarchy", {"draft": self._path, "intermediate": self._path})]
        if trees:
            modes += [(recorded_mode(plain, n_vocab, accuracy=ACCURACY, limit=2 * LIMIT, trees=True), {})]
            modes += [("tree", {"draft": self._path})]
        for mode, smaller in modes:
            with self._loaded(mode, **smaller) as model:
                name = f"{mode if isinstance(mode, str) else mode.name}{' with a model' * bool(smaller)}"
                if drafts and mode != "auto" and model.mode == "off":
                    self._differs(f"{name}: off, {model.notes}")
                found = list(self._asked(model))
                self._compare(name, [_tokens(reply) for reply in found], plain)
                if isinstance(mode, Mode):
                    self.report[mode.name] = _acceptance(found)

    def _compare(self, name: str, found: Sequence[object], wanted: Sequence[object]) -> None:
        n = sum(one != other for one, other in zip(found, wanted, strict=True))
        if n:
            self._differs(f"{name}: {n} of {len(wanted)}")

    def _differs(self, sentence: str) -> None:
        self.report["differences"].append(sentence)

    def _conversations(self, n_vocab: int) -> None:
        """Conversations are led alike with drafts and without, in long and in short contexts."""
        for n_ctx in (N_CTX, SHORT_CTX):
            with self._loaded("off", n_ctx=n_ctx) as model:
                plain = _conversation(model)
            texts = [tokens for _, tokens in plain]
            mode = recorded_mode(texts, n_vocab, accuracy=ACCURACY, limit=LIMIT)
            with self._loaded(mode, n_ctx=n_ctx) as model:
                drafted = _conversation(model)
            self._compare(f"conversation in {n_ctx}", [said for said, _ in drafted], [said for said, _ in plain])

    def _earlier_texts(self, plain: Tokens) -> None:
        """Prompts that begin like earlier ones get the replies that they get alone."""
        with self._loaded("ngram") as model:
            reused = 0
            for _ in range(2):
                found = list(self._asked(model, reuse=True))
                self._compare("earlier texts", [_tokens(reply) for reply in found], plain)
                reused += sum(reply.n_reused for reply in found)
            self.report["reused"] = reused


def _tokens(reply: Reply) -> list[int]:
    return [*reply.prompt, *reply.token_ids]


def _acceptance(replies: Sequence[Reply]) -> dict[str, float]:
    """Shares of drafted tokens that were accepted, and of rounds with drafts that were accepted in part."""
    drafted = sum(reply.statistics.drafted for reply in replies)
    rounds = sum(sum(reply.statistics.drafters.values()) for reply in replies)
    lengths: Counter[int] = sum((reply.statistics.lengths for reply in replies), Counter())
    in_part = sum(n for length, n in lengths.items() if 1 < length <= LIMIT)
    accepted = sum(reply.statistics.accepted for reply in replies)
    return {"drafted": drafted, "accepted": accepted / max(drafted, 1), "in_part": in_part / max(rounds, 1)}


def _conversation(model: edge_spec.TextModel) -> list[tuple[str, list[int]]]:
    """What is said in a conversation: each answer, and the tokens of all that the model had seen after it."""
    said: list[tuple[str, list[int]]] = []

    def hear(reply: Reply) -> None:
        said.append((reply.read(), _tokens(reply)))

    session = model.chat(seed=3, temperature=0.8, max_tokens=60, ignore_eos=True)
    other = model.chat(seed=4, temperature=0.0, max_tokens=20, ignore_eos=True)
    hear(session.send(QUESTIONS[0]))
    hear(other.send(QUESTIONS[1]))
    hear(session.send(QUESTIONS[1]))
    hear(session.retry())
    hear(session.edit(QUESTIONS[2]))
    with tempfile.TemporaryDirectory() as folder:
        session.save(Path(folder) / "said")
        session.close()
        session = edge_spec.ChatSession.load(model, Path(folder) / "said")
    for number in range(6):
        hear(session.send(QUESTIONS[number % len(QUESTIONS)]))
    session.undo()
    hear(session.send(QUESTIONS[3], max_tokens=5))
    hear(session.continue_answer())
    hear(other.send(QUESTIONS[2]))
    return said


def tried(path: Path, n_tokens: int) -> Report:
    """What came of a model, in this process."""
    trial = Trial(path, n_tokens)
    try:
        trial.run()
    except UnsupportedModel as error:
        trial.report["refused"] = str(error)
    except (EdgeSpecError, ValueError, AssertionError, OSError):
        trial.report["failed"] = traceback.format_exc(limit=-4)
    return trial.report


# --- all of them


def tried_apart(path: Path, n_tokens: int) -> Report:
    """What came of a model, in a process of its own."""
    command = [sys.executable, __file__, "--one", str(path), "--tokens", str(n_tokens)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT)
    except subprocess.TimeoutExpired:
        return {"name": path.stem, "aborted": f"after {_TIMEOUT} s"}
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        return {"name": path.stem, "aborted": f"exit code {done.returncode}: {' '.join(done.stderr.split())[-400:]}"}
    found: Report = json.loads(lines[-1])
    return found


def line_of(report: Report) -> str:
    """A model in a line."""
    name = f"{report['name']:24}"
    for kind in ("aborted", "failed", "refused"):
        if kind in report:
            return f"{name} {kind}: {' '.join(report[kind].split())[-300:]}"
    drafts = report.get("recorded", {"drafted": 0, "accepted": 0.0, "in_part": 0.0})
    widths = report["widths"]
    can = f"{report['identity']:8} widths {widths[0] if widths else '-'} to {report['rows']:<2}"
    came = f"accepted {drafts['accepted']:.2f}, in part {drafts['in_part']:.2f}" if drafts["drafted"] else "no drafts"
    more = [*report["differences"], *report["notes"]]
    return f"{name} {can} {'trees' if report['trees'] else '     '} {came:30} {'; '.join(more)}".rstrip()


def sums(reports: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """How many of which kind."""
    tried_ones = [report for report in reports if "identity" in report and not {"aborted", "failed"} & report.keys()]
    bitwise = [report for report in tried_ones if report["identity"] == "bitwise"]
    drafted = [report["recorded"] for report in tried_ones if report.get("recorded", {}).get("drafted")]
    enough: Callable[[Mapping[str, float]], bool] = lambda came: came["accepted"] >= 0.3 and came["in_part"] >= 0.2  # noqa: E731
    return {
        "models": len(reports),
        "native aborts": sum("aborted" in report for report in reports),
        "errors": sum("failed" in report for report in reports),
        "refused": sum("refused" in report for report in reports),
        "bitwise": len(bitwise),
        "bitwise with differences": sum(bool(report["differences"]) for report in bitwise),
        "rounding": len(tried_ones) - len(bitwise),
        "with drafts": len(drafted),
        "of these with too few accepted or rejected in part": sum(not enough(came) for came in drafted),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, nargs="?")
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--only", default="", metavar="REGEX", help="of the names of files, such as 'qwen|lfm2'")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=600)
    parser.add_argument("--out", type=Path, help="a file for the reports, a JSON object a line")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one is not None:
        print(json.dumps(tried(asked.one, asked.tokens)))
        return 0
    if asked.source is None or asked.folder is None:
        parser.error("SOURCE and FOLDER are needed")
    from architecture_models import architecture_models

    paths = architecture_models(asked.source, asked.folder, only=asked.only)
    reports: list[Report] = []
    with ThreadPoolExecutor(asked.processes) as pool:
        for report in pool.map(lambda path: tried_apart(path, asked.tokens), paths):
            reports.append(report)
            print(line_of(report), flush=True)
            if asked.out is not None:
                with asked.out.open("a", encoding="utf-8") as out:
                    out.write(json.dumps(report) + "\n")
    found = sums(reports)
    print(*(f"{n:4} {name}" for name, n in found.items()), sep="\n")
    wrong = (
        "native aborts",
        "errors",
        "bitwise with differences",
        "of these with too few accepted or rejected in part",
    )
    return int(any(found[name] for name in wrong))


if __name__ == "__main__":
    sys.exit(main())
