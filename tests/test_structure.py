"""Laws of the layout: which folder may import which, that no file leads back to itself, and what is in use at all."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import click
import pytest
from import_graph import (
    by_folder,
    component_of,
    engine_lines,
    graph_of,
    imports_of,
    longest_chain,
    modules_of,
    reached_from,
)

from edge_spec.cli.command import root
from edge_spec.engines.registry import engines

ROOT = Path(__file__).parent.parent

LEVELS = (
    ("errors", "foreign"),
    ("extras", "options"),
    ("tokens",),
    ("memory",),
    ("sampling", "models"),
    ("speculation", "llama_cpp"),
    ("engines", "generation"),
    ("controller", "library", "model_info", "testing"),
    ("chat",),
    ("model",),
    ("loading", "evaluation"),
    ("server",),
    ("",),  # edge_spec itself, which hands out what people import
    ("cli",),
    ("__main__",),
    ("training",),
)
"""Folders and loose files of ``edge_spec``, the lowest first: each imports itself and what stands on lower lines."""

FOLDERS = [folder for level in LEVELS for folder in level]
PRODUCT = modules_of(ROOT)
MODULES = PRODUCT | modules_of(ROOT / "training")
IMPORTS = graph_of(MODULES)
"""Which modules each module imports; imports in functions and those for type checkers count as well."""

MAX_LOOSE_FILES, MAX_LEVELS = 9, 11
ENVIRONMENT = ("environ", "environb", "getenv", "getenvb")


def folder_of(module: str) -> str:
    return (*module.split("."), "")[1]


def test_every_folder_has_its_level() -> None:
    assert set(map(folder_of, MODULES)) <= set(FOLDERS)


@pytest.mark.parametrize("folder", FOLDERS)
def test_imports_lead_downwards(folder: str) -> None:
    level = next(number for number, names in enumerate(LEVELS) if folder in names)
    allowed = {folder, *(name for names in LEVELS[:level] for name in names)}
    upwards = [
        f"{module} imports {target}"
        for module, targets in sorted(IMPORTS.items())
        if folder_of(module) == folder
        for target in sorted(targets)
        if folder_of(target) not in allowed
    ]
    assert not upwards


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_file_leads_back_to_itself(folder: str) -> None:
    circles = {component for component in component_of(IMPORTS).values() if len(component) > 1}
    assert not [sorted(circle) for circle in circles if folder in map(folder_of, circle)]


def test_chains_of_folders_are_short() -> None:
    assert len(longest_chain(by_folder(IMPORTS))) <= MAX_LEVELS


def test_few_files_lie_loose() -> None:
    assert len(list((ROOT / "edge_spec").glob("*.py"))) <= MAX_LOOSE_FILES


@pytest.mark.long
def test_what_runs_models_imports_nothing_of_the_laboratory() -> None:
    """Training, recordings, replays and plots lie in ``training`` and ``benchmarks``, which no wheel of it contains."""
    scripts = (path.stem for folder in ("benchmarks", "tests/support") for path in (ROOT / folder).glob("*.py"))
    laboratory = {"torch", "matplotlib", "benchmarks", "tests", *scripts}
    assert not [
        f"{module} imports {target}"
        for module, targets in imports_of(PRODUCT).items()
        for target in targets
        if target.startswith("edge_spec.training") or target.partition(".")[0] in laboratory
    ]


def test_nothing_lies_in_the_package_that_nobody_reaches() -> None:
    """From the modules that people import, the verbs of the command and the engines."""
    command = root()
    verbs = (f"edge_spec.cli.{name}" for name in command.list_commands(click.Context(command)))
    people = ("edge_spec", "edge_spec.testing", "edge_spec.__main__", "edge_spec.cli")
    starts = (*people, "edge_spec.cli.llm_plugin", "edge_spec.cli.frozen")
    names = {*starts, *verbs, *(type(engine).__module__ for engine in engines())}
    reached = reached_from(IMPORTS, names & set(PRODUCT))
    alone = {name for name, path in PRODUCT.items() if name not in reached and path.name != "__init__.py"}
    assert alone == {"edge_spec.cli.frozen.hook-edge_spec"}  # PyInstaller finds it by its name


@pytest.mark.long
def test_only_the_command_and_load_read_the_environment() -> None:
    """Whatever lies below is given what it needs of it. Libraries are told by variables of their own."""
    readers = {
        name
        for name, path in PRODUCT.items()
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if (isinstance(node, ast.Attribute) and node.attr in ENVIRONMENT)
        or (isinstance(node, ast.alias) and node.name in ENVIRONMENT)
    }
    elsewhere = {name for name in readers if folder_of(name) != "cli"}
    assert elsewhere == {"edge_spec.loading", "edge_spec.engines.onnx.runner", "edge_spec.llama_cpp.waiting_threads"}


@pytest.mark.parametrize("engine", ["llama", "onnx"])
def test_an_engine_is_opened_by_the_registry_alone(engine: str) -> None:
    """Nobody imports what lies inside an engine, in functions neither; the registry names its object."""
    inside = f"edge_spec.engines.{engine}."
    importers = {
        module: sorted(target for target in targets if f"{target}.".startswith(inside))
        for module, targets in IMPORTS.items()
        if not f"{module}.".startswith(inside)
    }
    assert any(f"{module}.".startswith(inside) for module in IMPORTS)
    assert not {module: found for module, found in importers.items() if found}


def test_only_engines_know_their_names() -> None:
    """Elsewhere an engine is an object to ask, and its name is something to print."""
    assert not engine_lines(MODULES, {name: path.read_text("utf-8") for name, path in MODULES.items()})


@pytest.mark.parametrize("document", ["CONTRIBUTING.md", "docs/architecture.md", "benchmarks/README.md"])
def test_documents_name_files_that_exist(document: str) -> None:
    folder = (ROOT / document).parent
    named = re.findall(r"`([\w./-]+)`", (ROOT / document).read_text("utf-8"))
    paths = [name for name in named if re.fullmatch(r"[\w./-]+\.(py|md|toml|c)|\.ci/\w+", name) and "VERB" not in name]
    assert paths
    for path in paths:
        places = (ROOT, folder, ROOT / "edge_spec", ROOT / "edge_spec" / "engines")
        assert any((place / path).exists() for place in places), path


def test_the_page_on_benchmarks_names_every_script() -> None:
    said = (ROOT / "benchmarks" / "README.md").read_text("utf-8")
    scripts = [path for kind in ("*.py", "*.c") for path in (ROOT / "benchmarks").rglob(kind)]
    assert scripts
    for path in scripts:
        # With its folder: two may have the same name.
        assert re.search(rf"`{re.escape(path.relative_to(ROOT / 'benchmarks').as_posix())}[` ]", said), path


def test_the_page_on_the_architecture_stays_a_page() -> None:
    assert len((ROOT / "docs" / "architecture.md").read_text("utf-8").splitlines()) <= 80
