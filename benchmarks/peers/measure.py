"""Tokens per second beside other programs: the same files, prompts, threads and lengths, in turn.

    python benchmarks/peers/build.py BUILD
    python -m venv OV && OV/bin/pip install openvino-genai
    python benchmarks/peers/measure.py --programs BUILD/bin --openvino OV/bin/python --enlarged BIG.gguf \\
        --prompts SPEC_BENCH.jsonl --into benchmarks/NOTES.md

Compared are llama.cpp's own server, OpenVINO GenAI and edge-spec. llama.cpp decodes plainly, with n-grams, with a
draft model, and with as many tokens accepted as by our hierarchy, which it does not have: an option of it for
benchmarks draws them. Every program stays open; they write a prompt one after the other, then the next one. Every
reply has the same number of tokens, whatever it says. The lengths of llama.cpp's drafts are chosen by what is fastest
on other prompts than those measured.

With ``--head HEAD.gguf`` (of ``edge-spec drafter make smollm2 --kind head``) SmolLM2 is also written with that head, by
edge-spec and, exported, by llama.cpp's own ``draft-eagle3``.

BIG.gguf is the demo target in the shape of 1.0B (``enlarged_model.write_enlarged``); without it only SmolLM2 and the
demo family are measured. Needs a quiet computer, and some ten minutes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from writers import LlamaServer, OpenVino, Ours, Task, Writer, Written

from edge_spec.cli.check import prompts_or_own
from edge_spec.memory import describe
from edge_spec.models import inspect, resolve_family
from edge_spec.training.drafter.llama_cpp import export_for_llama_cpp

BEGIN, END = "<!-- measured -->", "<!-- end of what was measured -->"
DRAFT_LENGTHS = (2, 3, 4, 6)
NGRAMS = ((2, 3), (3, 4), (4, 8), (8, 16))
"""Tokens to look up and tokens to draft."""

_N_CTX = 1024


@dataclass(frozen=True)
class Subject:
    """A model with its smaller ones, and what is written with it."""

    name: str
    target: Path
    draft: Path | None
    intermediate: Path | None
    texts: Sequence[str]
    tuned_on: Sequence[str]
    n_tokens: int
    head: Path | None = None


@dataclass(frozen=True)
class Row:
    """What one program reached at one temperature: medians over the prompts."""

    program: str
    temperature: float
    tokens_per_s: float
    mean_length: float


Open = Callable[[], Writer]


@contextmanager
def opened(open_writer: Open) -> Iterator[Writer]:
    writer = open_writer()
    try:
        yield writer
    finally:
        writer.close()


class Measurement:
    """All programs on one subject."""

    def __init__(self, subject: Subject, options: argparse.Namespace) -> None:
        self.subject = subject
        self._options = options
        self.rows: list[Row] = []
        self.notes: list[str] = []

    def run(self) -> None:
        with ExitStack() as stack:
            self._folder = Path(stack.enter_context(TemporaryDirectory()))
            ours = self._ours("auto")
            stack.callback(ours.close)
            tasks = self._tasks(ours, self.subject.texts)
            tuning = [replace(task, temperature=t) for task in self._tasks(ours, self.subject.tuned_on) for t in (0.0,)]
            writers: dict[str, Writer] = {"edge-spec, auto": ours}
            reached = self._hierarchy_length(tuning)
            for name, open_writer in self._programs(tuning, reached).items():
                try:
                    writers[name] = open_writer()
                except (RuntimeError, OSError) as error:
                    self.notes.append(f"{name} does not run here: {error}")
                    continue
                stack.callback(writers[name].close)
            for temperature in self._options.temperatures:
                found: dict[str, list[Written]] = {name: [] for name in writers}
                warm_up = [replace(tasks[0], n_tokens=8)]
                for task in [*warm_up, *tasks]:
                    for name, writer in writers.items():
                        written = writer.write(replace(task, temperature=temperature))
                        if task not in warm_up:
                            found[name].append(written)
                self.rows += [
                    Row(name, temperature, median(w.tokens_per_s for w in all_), median(w.mean_length for w in all_))
                    for name, all_ in found.items()
                ]

    def _tasks(self, ours: Ours, texts: Sequence[str]) -> list[Task]:
        return [Task(text, ours.prompt(text), self.subject.n_tokens, 0.0, 1 + n) for n, text in enumerate(texts)]

    def _ours(self, mode: str, *, head: bool = False) -> Ours:
        subject = self.subject
        files = {"draft": subject.head if head else subject.draft, "intermediate": subject.intermediate}
        given = {name: str(path) for name, path in files.items() if path is not None}
        return Ours(
            str(subject.target), speculation=mode, n_ctx=_N_CTX, n_threads=self._options.threads, engine="onnx", **given
        )

    def _llama(self, *options: str) -> Open:
        program, threads = self._options.programs / "llama-server", self._options.threads
        return lambda: LlamaServer(program, self.subject.target, n_threads=threads, n_ctx=_N_CTX, options=options)

    def _hierarchy_length(self, tuning: Sequence[Task]) -> float | None:
        """Tokens per decode of our hierarchy, on the prompts that settings are tuned on."""
        if self.subject.draft is None or self.subject.intermediate is None:
            return None
        with opened(lambda: self._ours("hierarchy")) as ours:
            return median(ours.write(task).mean_length for task in tuning)

    def _programs(self, tuning: Sequence[Task], reached: float | None) -> dict[str, Open]:
        programs: dict[str, Open] = {
            "edge-spec, plain": lambda: self._ours("off"),
            "llama.cpp, plain": self._llama(),
        }
        size, draft = self._fastest(tuning, NGRAMS, lambda n, m: self._llama(*ngrams(n, m)))
        programs[f"llama.cpp, n-grams of {size}, {draft} drafted"] = self._llama(*ngrams(size, draft))
        drafter = self.subject.intermediate or self.subject.draft
        if drafter is not None:
            (n,) = self._fastest(tuning, [(n,) for n in DRAFT_LENGTHS], lambda n: self._llama(*model(drafter, n)))
            programs[f"llama.cpp, draft model, {n} drafted"] = self._llama(*model(drafter, n))
            if reached is not None:
                most = max(n, round(reached + 0.5))
                drawn = (*model(drafter, most), "--spec-synth-len", f"{reached:.2f}")
                name = f"llama.cpp, {most} drafted, accepted as often as our hierarchy (drawn, its text is not valid)"
                programs[name] = self._llama(*drawn)
        if self.subject.head is not None:
            programs["edge-spec, auto with the head"] = lambda: self._ours("auto", head=True)
            exported = self._folder / "eagle3.gguf"
            export_for_llama_cpp(inspect(self.subject.head), inspect(self.subject.target), exported)
            (n,) = self._fastest(tuning, [(n,) for n in DRAFT_LENGTHS], lambda n: self._llama(*eagle3(exported, n)))
            programs[f"llama.cpp, the same head, {n} drafted"] = self._llama(*eagle3(exported, n))
        if self._options.openvino is not None:
            python, threads = self._options.openvino, self._options.threads
            programs["OpenVINO GenAI, plain"] = lambda: OpenVino(python, self.subject.target, n_threads=threads)
        return programs

    def _fastest(
        self, tuning: Sequence[Task], settings: Sequence[tuple[int, ...]], open_writer: Callable[..., Open]
    ) -> tuple[int, ...]:
        """The setting with the most tokens per second."""
        speeds: dict[tuple[int, ...], float] = {}
        for setting in settings:
            speeds[setting] = 0.0
            try:
                with opened(open_writer(*setting)) as writer:
                    writer.write(replace(tuning[0], n_tokens=8))
                    speeds[setting] = median(writer.write(task).tokens_per_s for task in tuning)
            except (RuntimeError, OSError) as error:
                self.notes.append(f"a setting of llama.cpp does not run here: {error}")
        return max(speeds, key=lambda setting: speeds[setting])


def ngrams(n: int, m: int) -> tuple[str, ...]:
    sizes = ("--spec-ngram-simple-size-n", str(n), "--spec-ngram-simple-size-m", str(m))
    return ("--spec-type", "ngram-simple", *sizes)


def model(path: Path, n: int) -> tuple[str, ...]:
    return ("--spec-type", "draft-simple", "-md", str(path), "--spec-draft-n-max", str(n))


def eagle3(path: Path, n: int) -> tuple[str, ...]:
    return ("--spec-type", "draft-eagle3", "-md", str(path), "--spec-draft-n-max", str(n))


def table(measurements: Sequence[Measurement], options: argparse.Namespace) -> str:
    """All of it as Markdown."""
    temperatures = options.temperatures
    titles = [f"temperature {t:g}: tokens/s | over llama.cpp plain | tokens/decode" for t in temperatures]
    lines = [f"| model | program | {' | '.join(titles)} |", "|---|---|" + "---|" * 3 * len(temperatures)]
    for each in measurements:
        plain = {row.temperature: row.tokens_per_s for row in each.rows if row.program == "llama.cpp, plain"}
        for program in dict.fromkeys(row.program for row in each.rows):
            cells = [
                f"{row.tokens_per_s:.1f} | {row.tokens_per_s / plain[row.temperature]:.2f} | {row.mean_length:.2f}"
                for row in each.rows
                if row.program == program
            ]
            lines.append(f"| {each.subject.name} | {program} | {' | '.join(cells)} |")
    processor = describe().processor or "unknown processor"
    versions = f"llama.cpp of llama-cpp-python {version('llama-cpp-python')}, edge-spec {version('edge-spec')}"
    sizes = "; ".join(
        f"{each.subject.name}: {len(each.subject.texts)} prompts of {each.subject.n_tokens} tokens"
        for each in measurements
    )
    notes = [f"- {each.subject.name}: {note}" for each in measurements for note in each.notes]
    about = f"{processor}, {options.threads} threads; {versions}. {sizes}. Medians over the prompts."
    return "\n".join([*lines, "", about, *([""] if notes else []), *notes])


def subjects(options: argparse.Namespace) -> list[Subject]:
    demo, n = resolve_family("demo"), options.limit
    texts = [prompt.text for prompt in prompts_or_own(None)]
    asked = [prompt.text for prompt in prompts_or_own(options.prompts)]
    found = [
        Subject("SmolLM2-135M", resolve_family("smollm2").target, None, None, asked[:n], asked[-2:], 96, options.head)
    ]
    small = (demo.draft, demo.intermediate)
    found.append(Subject("demo, 8M", demo.target, *small, texts[:n], texts[-2:], 128))
    if options.enlarged is not None:
        n_big = max(1, n // 2)
        found.append(Subject("demo as 1.0B", options.enlarged, *small, texts[:n_big], texts[-1:], 64))
    return [each for each in found if not options.only or each.name.startswith(tuple(options.only))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=Path, required=True, help="the folder that build.py prints")
    parser.add_argument("--openvino", type=Path, help="the interpreter of an environment with openvino-genai")
    parser.add_argument("--enlarged", type=Path, help="the demo target in the shape of 1.0B")
    parser.add_argument("--head", type=Path, help="a head for SmolLM2, as `edge-spec drafter make` makes them")
    parser.add_argument("--prompts", help="of SmolLM2, a file as `edge-spec bench` takes it; else the package's own")
    parser.add_argument("--only", action="append", help="how the name of a model begins")
    parser.add_argument("--limit", type=int, default=8, help="prompts per model; half as many for the large one")
    parser.add_argument("--tokens", type=int, help="of each reply, instead of what is usual for the model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--temperatures", type=lambda t: [float(x) for x in t.split(",")], default=[0.0, 0.8])
    parser.add_argument("--into", type=Path, help=f"write the table between {BEGIN} and {END} of this file")
    options = parser.parse_args()
    measurements = []
    for subject in subjects(options):
        print(f"measuring {subject.name} ...", file=sys.stderr, flush=True)
        measurement = Measurement(replace(subject, n_tokens=options.tokens or subject.n_tokens), options)
        measurement.run()
        measurements.append(measurement)
    found = table(measurements, options)
    print(found)
    if options.into is not None:
        before, rest = options.into.read_text(encoding="utf-8").split(BEGIN)
        after = rest.split(END)[1]
        options.into.write_text(f"{before}{BEGIN}\n{found}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
