"""Which modules of the package import which, as read from their sources.

Imports in functions and those for type checkers count as well, and names of modules in texts of files that call
``import_module``. Importing a module does not count as importing the packages around it. A circle is a set of modules
each of which leads to all others; levels count it as one. Folders import each other as their modules do; files loose
in the package are a folder of their own.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Container, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

__all__ = [
    "Graph",
    "by_folder",
    "component_of",
    "engine_lines",
    "graph_of",
    "imports_of",
    "longest_chain",
    "modules_of",
    "reached_from",
]

ENGINES = "engines"
"""The folder whose code may know which engine it belongs to."""

_NAME = r"""["'](llama|onnx)["']"""
NAMES_AN_ENGINE = re.compile(rf"(==|!=|\bin\b) *[(\[{{]?{_NAME}|{_NAME} *[)\]}}]? *(==|!=|(not +)?in\b)")

Graph = Mapping[str, set[str]]


def modules_of(*distributions: Path) -> dict[str, Path]:
    """The file of every module, by full name; that of a package is its ``__init__.py``.

    Args:
        distributions: folders that have a pyproject.toml.
    """
    found = {}
    for root in distributions:
        settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
        for package, folder in settings["tool"]["setuptools"]["package-dir"].items():
            for path in sorted((root / folder).rglob("*.py")):
                parts = path.relative_to(root / folder).with_suffix("").parts
                found[".".join((package, *(parts[:-1] if parts[-1] == "__init__" else parts)))] = path
    return found


def home_of(name: str, path: Path) -> str:
    """The package that a module lies in or is."""
    return name if path.name == "__init__.py" else name.rpartition(".")[0]


def imports_of(modules: Mapping[str, Path]) -> dict[str, set[str]]:
    """Return what each module imports: other modules of these by full name, and whatever else it names."""
    found = {}
    for name, path in modules.items():
        code = path.read_text(encoding="utf-8")
        tree, home = ast.parse(code), home_of(name, path)
        found[name] = {target for node in ast.walk(tree) for target in _imported(node, home, modules)}
        if "import_module(" in code:
            found[name] |= {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)} & set(modules)
        found[name] -= {name}
    return found


def _imported(node: ast.AST, home: str, known: Container[str]) -> Iterator[str]:
    """Yield what a statement in the package ``home`` imports."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        above = home.split(".")[: 1 - node.level or None] if node.level else []
        place = ".".join((*above, *filter(None, [node.module])))
        yield from (f"{place}.{alias.name}" if f"{place}.{alias.name}" in known else place for alias in node.names)


def graph_of(modules: Mapping[str, Path]) -> dict[str, set[str]]:
    """Return which of these modules each of them imports."""
    return {name: targets & set(modules) for name, targets in imports_of(modules).items()}


def by_folder(graph: Graph) -> dict[str, set[str]]:
    """Return which folders of the package import which; a file beside them counts as one."""
    home = {name: (*name.split("."), "")[1] for name in graph}
    pairs = {(home[name], home[target]) for name, targets in graph.items() for target in targets}
    return {folder: {b for a, b in pairs if a == folder != b} for folder in home.values()}


def reached_from(graph: Graph, starts: Iterable[str]) -> set[str]:
    """The modules that some modules lead to, themselves included."""
    ahead = list(starts)
    found = set(ahead)
    while ahead:
        ahead += (new := graph[ahead.pop()] - found)
        found |= new
    return found


def component_of(graph: Graph) -> dict[str, frozenset[str]]:
    """For each node the nodes that it leads to and that lead to it, itself included."""
    reached = {start: reached_from(graph, [start]) for start in graph}
    return {node: frozenset(other for other in reached[node] if node in reached[other]) for node in graph}


def longest_chain(graph: Graph) -> list[str]:
    """The longest chain of imports, from the top; a circle is one link."""
    component = component_of(graph)

    @cache
    def below(members: frozenset[str]) -> list[str]:
        targets = {component[target] for node in members for target in graph[node] - members}
        name = min(members) if len(members) == 1 else f"(circle of {len(members)} with {min(members)})"
        return [name, *max(map(below, sorted(targets, key=min)), key=len, default=[])]

    return max(map(below, sorted(set(component.values()), key=min)), key=len)


def engine_lines(modules: Mapping[str, Path], texts: Mapping[str, str]) -> list[str]:
    """Lines outside the engines that compare with the name of one."""
    outside = (name for name, path in modules.items() if ENGINES not in home_of(name, path).split("."))
    numbered = ((f"{name}:{n}", line) for name in outside for n, line in enumerate(texts[name].splitlines(), 1))
    return [f"{place}: {line.strip()}" for place, line in numbered if NAMES_AN_ENGINE.search(line)]
