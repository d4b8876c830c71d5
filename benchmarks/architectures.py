"""Tries every architecture that llama.cpp knows: modes, conversations, saving, contexts that are full.

    nice python benchmarks/architectures.py SOURCE FOLDER [--only REGEX] [--processes 1] [--tokens 600]

SOURCE and FOLDER are those of ``architecture_models.py``, which makes the models: small, with random weights, which
write texts that hardly repeat themselves and accept nothing that another model drafts. So the drafts are the target's
own recorded text with errors put in (``recorded_drafts.py``), as sequences and as trees.

Each model is tried in a process of its own, since the library ends the process where it fails. Three prompts at
temperatures 0 and 1 are answered without drafts and in every mode. (Where a smaller model drafts, which here is the
target itself, it is the beginning of one answer at each temperature.) A conversation with retries, edits and returns is
led, saved and loaded, and another one outgrows its context; prompts are asked that begin like earlier ones. All of it
must be what it is without drafts where ``identity`` is ``bitwise``.

A model takes half a minute of a core. What came of it is a line of FOLDER/reports.jsonl: a sweep that was interrupted
goes on where it ended, and one that found mistakes tries those models again. Models whose architecture has recurrent
layers come first. Printed are a line for each model and the sums; an ended process, an error, a difference, too few
drafts that were accepted or rejected, or a refusal of another model than one for diffusion makes the exit code 1.
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
from edge_spec.engines.llama.architectures import RECURRENT
from edge_spec.errors import EdgeSpecError, UnsupportedModel
from edge_spec.generation.reply import Reply
from edge_spec.models.gguf.header import read_header
from edge_spec.speculation.language_model import ANYWHERE
from edge_spec.speculation.modes import Mode

PROMPTS = (
    "Once upon a time there was a dog",
    "Question: what is the capital of France? Answer:",
    "The rain in Spain stays mainly in the plain, and the snow on the hills melts late in the year. " * 8,
)
QUESTIONS = ("Tell me a story about a dog.", "And then?", "What is it called?", "Why?")
Case = tuple[int, float]
"""The number of a prompt, and a temperature."""

CASES: tuple[Case, ...] = tuple((prompt, temperature) for prompt in range(len(PROMPTS)) for temperature in (0.0, 1.0))
FEW_CASES: tuple[Case, ...] = ((0, 0.0), (2, 1.0))
FEW_TOKENS, SOME_TOKENS = 60, 200
N_CTX, SHORT_CTX = 1024, 320
ACCURACY, LIMIT = 0.75, 3
_TIMEOUT = 3600
_ROUNDED_BYTES = 32 << 10
_MEASURED = ("KV cache", "recurrent state", "snapshots for drafts")
"""Lines of the memory plan of which the library says its own size."""

Tokens = list[list[int]]
Report = dict[str, Any]


# --- one model


class Trial:
    """A model file, tried in every way."""

    def __init__(self, path: Path, n_tokens: int, cache_dir: Path) -> None:
        self._path = path
        self._n_tokens = n_tokens
        self._cache_dir = cache_dir
        self.report: Report = {"name": path.stem, "tokens": n_tokens, "differences": [], "off": {}}

    def run(self) -> None:
        """Fill ``report``."""
        with self._loaded("off") as model:
            can = model.followed["target"].model.capabilities
            self.report |= {
                "identity": model.identity,
                "widths": list(can.widths),
                "rows": can.max_rows,
                "goes back": "anywhere" if can.rollback == ANYWHERE else str(can.rollback),
                "shifts": can.can_shift,
                "notes": list(model.notes),
                "memory": {
                    line.name: [line.predicted_bytes, line.measured_bytes]
                    for line in model.ledger
                    if line.owner == "target" and line.name in _MEASURED
                },
            }
            plain = self._texts(model)
            self.report["distinct"] = min(len(set(tokens)) for tokens in plain)
        self._modes(plain, model.n_vocab, drafts=can.rollback > 0)
        self._conversations(model.n_vocab)
        self._earlier_texts()

    def _loaded(self, mode: str | Mode, **values: Any) -> edge_spec.TextModel:
        asked: dict[str, Any] = {"engine": "llama", "n_threads": 1, "n_ctx": N_CTX, "memory": "4GiB"}
        return edge_spec.load(self._path, speculation=mode, cache_dir=self._cache_dir, **(asked | values))

    def _asked(self, model: edge_spec.TextModel, cases: Sequence[Case] = CASES, **values: Any) -> Iterator[Reply]:
        for prompt, temperature in cases:
            asked = {"max_tokens": self._n_tokens, **values}
            reply = model.generate(
                PROMPTS[prompt], raw=True, seed=prompt, temperature=temperature, ignore_eos=True, **asked
            )
            reply.read()
            yield reply

    def _texts(self, model: edge_spec.TextModel) -> Tokens:
        return [_tokens(reply) for reply in self._asked(model)]

    def _modes(self, plain: Tokens, n_vocab: int, *, drafts: bool) -> None:
        """Every mode writes the same; what came of the recorded drafts."""
        recorded = recorded_mode(plain, n_vocab, accuracy=ACCURACY, limit=LIMIT)
        trees = recorded_mode(plain, n_vocab, accuracy=ACCURACY, limit=2 * LIMIT, trees=True)
        smaller = {"draft": self._path, "intermediate": self._path}
        self._mode(recorded, plain, drafts=drafts)
        self._mode(trees, plain, drafts=False)
        self._mode("ngram", plain, drafts=drafts)
        self._mode("auto", plain, drafts=False)
        if drafts:
            self._mode("sequence", plain, drafts=True, cases=FEW_CASES, **smaller)
            self._mode("tree", plain, drafts=False, cases=FEW_CASES, **smaller)
            self._mode("hierarchy", plain, drafts=True, cases=FEW_CASES, **smaller)
            self._mode("auto", plain, drafts=False, cases=FEW_CASES, **smaller)

    def _mode(
        self, mode: str | Mode, plain: Tokens, *, drafts: bool, cases: Sequence[Case] = CASES, **smaller: Path
    ) -> None:
        """One of them.

        Args:
            drafts: whether it must not be off.
        """
        name = f"{mode if isinstance(mode, str) else mode.name}{' with a model' * bool(smaller)}"
        with self._loaded(mode, **smaller) as model:
            if model.mode == "off":
                self.report["off"][name] = "; ".join(model.notes)
                if drafts or not model.notes:
                    self._differs(f"{name} is off: {model.notes}")
                return
            found = list(
                self._asked(model, cases, **({"max_tokens": min(SOME_TOKENS, self._n_tokens)} if smaller else {}))
            )
        wanted = [plain[CASES.index(case)] for case in cases]
        if smaller:
            wanted = [
                text[: len(reply.prompt) + min(SOME_TOKENS, self._n_tokens)]
                for text, reply in zip(wanted, found, strict=True)
            ]
        self._compare(name, [_tokens(reply) for reply in found], wanted)
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

    def _earlier_texts(self) -> None:
        """Prompts that begin like earlier ones get the replies that they get alone."""
        with self._loaded("ngram") as model:
            alone = [_tokens(reply) for reply in self._asked(model, max_tokens=FEW_TOKENS)]
        with self._loaded("ngram") as model:
            reused = 0
            for _ in range(2):
                found = list(self._asked(model, max_tokens=FEW_TOKENS, reuse=True))
                self._compare("earlier texts", [_tokens(reply) for reply in found], alone)
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
    """Return what is said in a conversation: each answer, and the tokens of all that the model had seen after it."""
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
    """Return what came of a model, in this process."""
    with tempfile.TemporaryDirectory() as cache_dir:
        return _tried(Trial(path, n_tokens, Path(cache_dir)))


def _tried(trial: Trial) -> Report:
    try:
        trial.run()
    except UnsupportedModel as error:
        trial.report["refused"] = str(error)
    except (EdgeSpecError, ValueError, AssertionError, OSError):
        trial.report["failed"] = traceback.format_exc(limit=-4)
    return trial.report


# --- all of them


def tried_apart(path: Path, n_tokens: int) -> Report:
    """Return what came of a model, in a process of its own."""
    command = [sys.executable, __file__, "--one", str(path), "--tokens", str(n_tokens)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT)
    except subprocess.TimeoutExpired:
        return {"name": path.stem, "tokens": n_tokens, "aborted": f"after {_TIMEOUT} s"}
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        said = " ".join(done.stderr.split())[-400:]
        return {"name": path.stem, "tokens": n_tokens, "aborted": f"exit code {done.returncode}: {said}"}
    found: Report = json.loads(lines[-1])
    return found


def line_of(report: Report) -> str:
    """A model in a line."""
    name = f"{report['name']:20}"
    for kind in ("aborted", "failed", "refused"):
        if kind in report:
            return f"{name} {kind}: {' '.join(report[kind].split())[-300:]}"
    widths = report["widths"]
    can = f"{report['identity']:8} widths {widths[0] if widths else '-'} to {report['rows']:<2}"
    came = " | ".join(_came(report[kind]) if kind in report else "none" for kind in ("recorded", "recorded trees"))
    more = [*report["differences"], *report["notes"], *(f"{name}: {why}" for name, why in report["off"].items())]
    return f"{name} {can} back {report['goes back']:8} drafts {came:50} {'; '.join(dict.fromkeys(more))}".rstrip()


def _came(drafts: Mapping[str, float]) -> str:
    return f"accepted {drafts['accepted']:.2f} in part {drafts['in_part']:.2f}"


def sums(reports: Sequence[Report]) -> dict[str, int]:
    """Return how many of which kind."""
    tried_ones = [report for report in reports if not {"aborted", "failed", "refused"} & report.keys()]
    refused = [report["refused"] for report in reports if "refused" in report]
    bitwise = [report for report in tried_ones if report["identity"] == "bitwise"]
    drafted = [report["recorded"] for report in tried_ones if report.get("recorded", {}).get("drafted")]
    enough: Callable[[Mapping[str, float]], bool] = lambda came: came["accepted"] >= 0.3 and came["in_part"] >= 0.2  # noqa: E731
    return {
        "models": len(reports),
        "native aborts": sum("aborted" in report for report in reports),
        "errors": sum("failed" in report for report in reports),
        "refused as diffusion models": sum("diffusion" in why for why in refused),
        "refused otherwise": sum("diffusion" not in why for why in refused),
        "bitwise": len(bitwise),
        "bitwise with differences": sum(bool(report["differences"]) for report in bitwise),
        "rounding": len(tried_ones) - len(bitwise),
        "with drafts": len(drafted),
        "with trees": sum("recorded trees" in report for report in tried_ones),
        "without drafts": sum("recorded" not in report for report in tried_ones),
        "with too few drafts accepted or rejected in part": sum(not enough(came) for came in drafted),
        "with other caches than planned": sum(not _as_planned(report) for report in tried_ones),
    }


WRONG = (
    "native aborts",
    "errors",
    "refused otherwise",
    "bitwise with differences",
    "with too few drafts accepted or rejected in part",
    "with other caches than planned",
)
"""Sums that must be 0."""


def _as_planned(report: Report) -> bool:
    """Return whether caches and states took what the plan had said; the library tells sizes to 5 KiB each."""
    sizes = report["memory"].values()
    return all(measured is None or abs(planned - measured) <= _ROUNDED_BYTES for planned, measured in sizes)


def is_good(report: Report) -> bool:
    """Return whether nothing speaks against a model's report."""
    found = sums([report])
    return not any(found[name] for name in WRONG)


def known(path: Path, n_tokens: int) -> dict[str, Report]:
    """Good reports of an earlier sweep of as many tokens, by the name of the model."""
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    reports = [report for report in map(json.loads, lines) if report["tokens"] == n_tokens]
    last: dict[str, Report] = {report["name"]: report for report in reports}
    return {name: report for name, report in last.items() if is_good(report)}


def _order(path: Path) -> tuple[bool, str]:
    return architecture_of(path) not in RECURRENT, path.stem


def architecture_of(path: Path) -> str:
    """Of a model file, told from its header."""
    return str(read_header(path).metadata["general.architecture"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, nargs="?")
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--only", default="", metavar="REGEX", help="of the names of files, such as 'qwen|lfm2'")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=600)
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one is not None:
        print(json.dumps(tried(asked.one, asked.tokens)))
        return 0
    if asked.source is None or asked.folder is None:
        parser.error("SOURCE and FOLDER are needed")
    from architecture_models import architecture_models

    paths = sorted(architecture_models(asked.source, asked.folder, only=asked.only), key=_order)
    record = asked.folder / "reports.jsonl"
    done = known(record, asked.tokens)
    reports: list[Report] = []
    with ThreadPoolExecutor(asked.processes) as pool:
        for report in pool.map(lambda path: done.get(path.stem) or tried_apart(path, asked.tokens), paths):
            reports.append(report)
            print(line_of(report), flush=True)
            if report["name"] not in done:
                with record.open("a", encoding="utf-8") as out:
                    out.write(json.dumps(report) + "\n")
    found = sums(reports)
    print(*(f"{n:4} {name}" for name, n in found.items()), sep="\n")
    return int(any(found[name] for name in WRONG))


if __name__ == "__main__":
    sys.exit(main())
