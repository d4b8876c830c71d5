"""Laws of documents and help texts: what they show works as written."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

import click
import pytest
from document_world import DocumentWorld
from documents import A_FILE, ALSO_BY_CI, BY_CI, DOCUMENTS, NOT_RUN, ROOT, RUN, Block, blocks_of, examples_of

from edge_spec.cli.command import root

linux = pytest.mark.skipif(sys.platform != "linux", reason="documents show a shell, and the folders of Linux")

SHORT = {
    "run": ("-n", "32"),
    "chat": ("-n", "32"),
    "serve": ("-n", "32"),
    "check": ("--limit", "1", "-n", "8"),
    "bench": ("--limit", "1", "--rounds", "1", "-n", "8"),
    "pair": ("--limit", "1", "--rounds", "1", "-n", "8"),
}
"""What verbs are told besides, so that all documents are tried in minutes. The slow tests tell them nothing."""

SLOW = {"edge-spec drafter make": "it trains for hours", "benchmarks/degradation_memory.py": "it takes minutes"}
"""What only the slow tests run: something in the block, and why."""

NEEDS = {"edge-spec drafter make": "torch", "curl ": "curl"}
"""Libraries and programs that a computer may lack, by something in the block."""

SMALL = {
    "drafter make": ("--tokens", "1500", "--answer-tokens", "16", "--layers", "1", "--width", "64", "--passes", "1")
}
"""What even the slow tests tell them, whose hours would be too many."""

WAYS = [pytest.param(SHORT, id="short"), pytest.param(SMALL, id="as-written", marks=pytest.mark.slow)]

N_NOT_RUN, N_BY_CI = 4, 7


def context_of(command: click.Command, name: str | None = None) -> click.Context:
    """As the command itself makes it: click keeps the help option that it is first asked for."""
    return click.Context(command, info_name=name, max_content_width=200, help_option_names=["-h", "--help"])


def commands() -> dict[str, click.Command]:
    """Verbs and what they consist of, by their full names."""
    found: dict[str, click.Command] = {"edge-spec": root()}
    for name, command in found.copy().items():
        assert isinstance(command, click.Group)
        context = context_of(command)
        for verb in command.list_commands(context):
            inner = command.get_command(context, verb)
            assert inner is not None
            found[f"{name} {verb}"] = inner
            if isinstance(inner, click.Group):
                found |= {f"{name} {verb} {each}": of for each, of in inner.commands.items()}
    return found


COMMANDS = commands()
EXAMPLES = [
    block
    for name, command in COMMANDS.items()
    if (
        block := examples_of(
            name,
            command.get_help(context_of(command, name)),
        )
    )
]
SHOWN = {document.relative_to(ROOT).as_posix(): blocks_of(document) for document in DOCUMENTS}


@pytest.fixture(scope="module")
def one_core() -> Iterator[None]:
    """As many threads as cores are the default, and slow where another program needs one of the cores."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    yield
    os.sched_setaffinity(0, cores)


@pytest.fixture(scope="module", params=WAYS)
def try_examples(
    request: pytest.FixtureRequest, one_core: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[Block], None]]:
    """Tries the examples of one verb after the other in the same home."""
    caches = request.getfixturevalue("caches") if request.param is SHORT else None
    with DocumentWorld(tmp_path_factory.mktemp("examples"), request.param, caches=caches) as world:
        yield lambda examples: try_all([examples], world, slow=request.param is SMALL)


def try_all(blocks: Sequence[Block], world: DocumentWorld, *, slow: bool) -> None:
    """Run blocks one after the other, and report all that do not work."""
    faults, lacking = [], set[str]()
    for block in blocks:
        if block.marker == BY_CI or block.marker.startswith(NOT_RUN):
            continue
        if not slow and any(part in block.text for part in SLOW):
            continue
        needs = {name for part, name in NEEDS.items() if part in block.text}
        if missing := {name for name in needs if find_spec(name) is None and shutil.which(name) is None}:
            lacking |= missing
        elif block.kind in RUN or block.marker.startswith(A_FILE):
            faults.append(world.fault(block))
    if any(faults):
        pytest.fail("\n\n".join(filter(None, faults)), pytrace=False)
    if lacking:
        pytest.skip(f"the others work; some need {', '.join(sorted(lacking))}")


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of caches of models, shared by all documents but the README."""
    return tmp_path_factory.mktemp("caches")


@pytest.mark.long
@linux
@pytest.mark.usefixtures("one_core")
@pytest.mark.parametrize("document", SHOWN)
@pytest.mark.parametrize("more", WAYS)
def test_what_a_document_shows_works_in_a_fresh_home(
    document: str, more: dict[str, tuple[str, ...]], tmp_path: Path, caches: Path
) -> None:
    is_fresh = document == "README.md" or more is SMALL
    with DocumentWorld(tmp_path, more, caches=None if is_fresh else caches) as world:
        try_all(SHOWN[document], world, slow=more is SMALL)


@pytest.mark.long
@linux
@pytest.mark.parametrize("examples", EXAMPLES, ids=lambda block: block.place)
def test_examples_of_help_texts_work(examples: Block, try_examples: Callable[[Block], None]) -> None:
    try_examples(examples)


@pytest.mark.long
@linux
@pytest.mark.parametrize(
    ("kind", "text", "wrong"),
    [
        ("sh", "edge-spec list --no-such\n", "exit code 2"),
        ("sh", "false\nedge-spec --version\n", "exit code 1"),
        ("sh", "edge-spec info no-such-model | cat\n", "an error"),
        ("console", "$ true\nand what it prints\n", "no output"),
        ("python", "import edge_spec\nedge_spec.nothing\n", "exit code 1"),
        ("python", "import sys\nprint(1)\nprint(2, file=sys.stderr)\n", "something on standard error"),
    ],
)
def test_what_does_not_work_is_reported(kind: str, text: str, wrong: str, tmp_path: Path) -> None:
    with DocumentWorld(tmp_path, SHORT) as world:
        fault = world.fault(Block(place="README.md:7", kind=kind, text=text))
    assert fault.startswith(f"README.md:7: {wrong}\n{text}")


def test_a_block_is_run_or_says_why_not() -> None:
    blocks = [block for document in SHOWN.values() for block in document]
    for block in blocks:
        if block.kind == "":  # a drawing, or what a program has said
            assert not re.search(r"^\s*(\$|edge-spec|python3?|pip|\S*/python3?) ", block.text, re.MULTILINE), (
                block.place
            )
        else:
            assert block.kind in RUN or block.marker.startswith((A_FILE, NOT_RUN)), block.place
        reason = block.marker.removeprefix(NOT_RUN) if block.marker.startswith(NOT_RUN) else "another marker"
        assert len(reason.split()) > 1, block.place
    assert sum(block.marker.startswith(NOT_RUN) for block in blocks) == N_NOT_RUN
    assert sum(block.marker == BY_CI for block in blocks) == N_BY_CI


def test_what_is_slow_is_shown_somewhere() -> None:
    texts = [block.text for block in (*EXAMPLES, *(block for document in SHOWN.values() for block in document))]
    assert [part for part in SLOW if not any(part in text for text in texts)] == []


@pytest.mark.long
def test_ci_runs_what_is_left_to_it(tmp_path: Path) -> None:
    script = ROOT / "tests" / "support" / "documents.py"
    assert f"{script.relative_to(ROOT).as_posix()} " in (ROOT / ".ci" / "run").read_text("utf-8")
    # As .ci/run does, before anything is installed.
    subprocess.run([sys.executable, "-I", "-S", str(script), str(tmp_path)], check=True)
    written = [path.read_text("utf-8") for path in sorted(tmp_path.iterdir())]
    marks = (BY_CI, ALSO_BY_CI)
    marked = [block for document in SHOWN.values() for block in document if block.marker in marks]
    assert written == [f"# {block.place}\n{block.text}" for block in marked]
    in_readme = [block.text for block in SHOWN["README.md"] if block.marker in marks]
    assert [sum(program in text for text in in_readme) for program in ("edge-spec run ", "-m pytest")] == [1, 1]
    # The first command makes the environment that the others use, and needs no llama.cpp.
    assert "activate" in in_readme[0] and "llama]" not in in_readme[0]
    assert any(block.marker == ALSO_BY_CI for block in SHOWN["README.md"])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_in_sentences_use_verbs_and_options_that_exist(document: Path) -> None:
    for written in re.findall(r"`(edge-spec(?: [^`\n]+)?)`", document.read_text("utf-8")):
        words = [word for word in re.sub(r"\"[^\"]*\"|'[^']*'", "TEXT", written).split()]
        names = [name for n in range(1, len(words) + 1) if (name := " ".join(words[:n])) in COMMANDS]
        command = COMMANDS[names[-1]]
        rest = words[len(names) :]
        assert not (isinstance(command, click.Group) and rest and rest[0].islower()), written
        options = {flag for param in command.get_params(context_of(command)) for flag in param.opts}
        assert {word for word in rest if word.startswith("-")} <= options | {"-h", "--help"}, written


def test_options_that_the_readme_names_exist() -> None:
    known = {flag for command in COMMANDS.values() for param in command.params for flag in param.opts}
    mentioned = re.findall(r"`(--?[a-zA-Z][\w-]*)[^`\n]*`", (ROOT / "README.md").read_text("utf-8"))
    assert set(mentioned) <= known | {"-h", "--help"}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_nothing_is_left_to_be_filled_in_and_links_lead_somewhere(document: Path) -> None:
    text = document.read_text("utf-8")
    assert not re.findall("@@|TODO|FIXME|XXX", text)
    for link, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", text):
        led_to = document.parent / link if link else document
        assert led_to.exists(), link
        if anchor:
            headings = re.findall(r"^#+ +(.+?) *$", led_to.read_text("utf-8"), flags=re.M)
            slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in slugs, f"{link}#{anchor}"
