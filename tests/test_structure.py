"""Laws of the layout: which folder may import which, that no file leads back to itself, and how large files get."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from structure import by_folder, component_of, engine_lines, graph_of, longest_chain, modules_of

ROOT = Path(__file__).parent.parent

LEVELS = (
    ("errors",),
    ("arguments",),
    ("tokens",),
    ("memory",),
    ("sampling", "models"),
    ("speculation",),
    ("engines", "generation"),
    ("controller", "library", "model_info"),
    ("chat",),
    ("model",),
    ("loading", "evaluation"),
    ("server",),
    ("",),  # edge_spec itself, which hands out what people import
    ("training",),
    ("cli",),
    ("__main__",),
)
"""Folders and loose files of ``edge_spec``, the lowest first: each imports itself and what stands on lower lines."""

FOLDERS = [folder for level in LEVELS for folder in level]
MODULES = modules_of(ROOT)
IMPORTS = graph_of(MODULES, all_kinds=True)
"""Which modules each module imports; imports in functions and those for type checkers count as well."""

PYTHON_FOLDERS = ("edge_spec", "models", "memory", "cli", "training", "benchmarks", "docs", "examples", "tests")
MAX_LOOSE_FILES, MAX_LINES, MAX_LEVELS = 9, 350, 10


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


@pytest.mark.parametrize("folder", PYTHON_FOLDERS)
def test_no_python_file_is_long(folder: str) -> None:
    lengths = {path: len(path.read_text("utf-8").splitlines()) for path in (ROOT / folder).rglob("*.py")}
    assert not {str(path.relative_to(ROOT)): n for path, n in lengths.items() if n > MAX_LINES}


def test_only_engines_know_their_names() -> None:
    """Elsewhere an engine is an object to ask, and its name is something to print."""
    assert not engine_lines(MODULES, {name: path.read_text("utf-8") for name, path in MODULES.items()})


@pytest.mark.parametrize("document", ["CONTRIBUTING.md", "docs/architecture.md", "benchmarks/README.md", "README.md"])
def test_documents_name_files_that_exist(document: str) -> None:
    folder = (ROOT / document).parent
    named = re.findall(r"`([\w./-]+)`", (ROOT / document).read_text("utf-8"))
    paths = [name for name in named if re.fullmatch(r"[\w./-]+\.(py|md|toml|c)|\.ci/\w+", name) and "VERB" not in name]
    assert paths
    for path in paths:
        places = (ROOT, folder, ROOT / "edge_spec", ROOT / "edge_spec" / "engines")
        assert any((place / path).exists() for place in places), path


def test_the_page_on_the_architecture_stays_a_page() -> None:
    assert len((ROOT / "docs" / "architecture.md").read_text("utf-8").splitlines()) <= 80
