"""How the code is built, in numbers, for one checkout or for two beside each other.

    python benchmarks/structure.py CHECKOUT [--python PYTHON] [--against OTHER [--against-python PYTHON]]
        [--json] [--verbose]

Read from the sources, wherever ``[tool.setuptools.package-dir]`` says they lie: levels and circles of imports, lengths,
and where code outside the engines asks for an engine by name. Counted while it runs, by PYTHON, in which that checkout
is installed: which files and functions one ``load`` and one decoding round enter, see ``structure_calls.py``. A first
``load`` does what is done once for each device, and does not count. ``-`` stands for what a checkout lacks.

Imports on module level run when the module is imported. All imports are these, those in functions, those for type
checkers, and names of modules in texts of files that call ``import_module``. Importing a module does not count as
importing the packages around it. A circle is a set of modules each of which leads to all others; levels count it as
one. Folders import each other as their modules do; files loose in the package are a folder of their own.

Lines of code are those without blank lines, comments and docstrings after ``ruff format --line-length 120`` (Ruff is
the one beside PYTHON or on the PATH), with its pragmas heeded, and removed: then code of two styles compares.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tokenize
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from structure_calls import PACKAGE, Row, call_rows

TRAINING = re.compile(rf"{PACKAGE}\.training\b")
"""Names of modules that only train."""

ENGINES = "engines"
"""The folder whose code may know which engine it belongs to."""

_NAME = r"""["'](llama|onnx)["']"""
NAMES_AN_ENGINE = re.compile(rf"(==|!=|\bin\b) *[(\[{{]?{_NAME}|{_NAME} *[)\]}}]? *(==|!=|(not +)?in\b)")

LOOP = f"{PACKAGE}.speculation.loop"
"""The module with the class whose method ``step`` is a decoding round."""

_NO_CODE = {getattr(tokenize, kind) for kind in ("COMMENT", "NL", "NEWLINE", "INDENT", "DEDENT", "ENDMARKER")}
_FMT = re.compile(r"# *fmt: *(skip|off|on)\b.*")
_C_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)

Graph = Mapping[str, set[str]]


def modules_of(root: Path) -> dict[str, Path]:
    """The file of every module, by full name; that of a package is its ``__init__.py``."""
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    found = {}
    for package, folder in settings["tool"]["setuptools"].get("package-dir", {PACKAGE: PACKAGE}).items():
        for path in sorted((root / folder).rglob("*.py")):
            parts = path.relative_to(root / folder).with_suffix("").parts
            found[".".join((package, *(parts[:-1] if parts[-1] == "__init__" else parts)))] = path
    return found


def imported(node: ast.AST, package: str, known: Iterable[str], *, all_kinds: bool, texts: bool) -> Iterator[str]:
    """Modules that the code of a module of ``package`` imports; those in texts only if ``texts``."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        above = package.split(".")[: 1 - node.level or None] if node.level else []
        home = ".".join((*above, *filter(None, [node.module])))
        yield from (f"{home}.{alias.name}" if f"{home}.{alias.name}" in known else home for alias in node.names)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and texts:
        yield node.value
    children: Iterable[ast.AST] = ast.iter_child_nodes(node)
    if not all_kinds and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return
    if not all_kinds and isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
        children = node.orelse
    for child in children:
        yield from imported(child, package, known, all_kinds=all_kinds, texts=texts)


def home_of(name: str, path: Path) -> str:
    """The package that a module lies in or is."""
    return name if path.name == "__init__.py" else name.rpartition(".")[0]


def graph_of(modules: Mapping[str, Path], *, all_kinds: bool) -> dict[str, set[str]]:
    """Which modules each module imports."""
    graph = {}
    for name, path in modules.items():
        code = path.read_text(encoding="utf-8")
        texts = all_kinds and "import_module(" in code
        found = imported(ast.parse(code), home_of(name, path), modules, all_kinds=all_kinds, texts=texts)
        graph[name] = set(found) & set(modules) - {name}
    return graph


def by_folder(graph: Graph) -> dict[str, set[str]]:
    """Which folders of the package import which; a file beside them counts as one."""
    home = {name: (*name.split("."), "")[1] for name in graph}
    pairs = {(home[name], home[target]) for name, targets in graph.items() for target in targets}
    return {folder: {b for a, b in pairs if a == folder != b} for folder in home.values()}


def component_of(graph: Graph) -> dict[str, frozenset[str]]:
    """For each node the nodes that it leads to and that lead to it, itself included."""
    reached: dict[str, set[str]] = {}
    for start in graph:
        ahead = [start]
        reached[start] = found = set(ahead)
        while ahead:
            ahead += (new := graph[ahead.pop()] - found)
            found |= new
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


def code_lines(text: str) -> set[int]:
    """Numbers of the lines of a Python file that are neither blank nor only comment or docstring."""
    texts: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        # Not only those at the beginning: a text under a constant describes it.
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            texts.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    kept = (token for token in tokens if token.type not in _NO_CODE)
    return {line for token in kept for line in range(token.start[0], token.end[0] + 1)} - texts


def formatted(texts: Mapping[str, str], python: str) -> dict[str, str]:
    """The texts of modules as Ruff writes them, whatever the project's settings say; nothing without Ruff."""
    ruff = shutil.which("ruff", path=os.pathsep.join((str(Path(python).parent), os.environ.get("PATH", ""))))
    if ruff is None:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        paths = {name: Path(folder) / f"{name}.py" for name in texts}
        for name, path in paths.items():
            path.write_text(texts[name], encoding="utf-8")
        settings = ("--isolated", "--no-cache", "--target-version", "py311", "--line-length", "120")
        subprocess.run([ruff, "format", "--quiet", *settings, folder], check=True)
        return {name: path.read_text(encoding="utf-8") for name, path in paths.items()}


def decoding_step(texts: Mapping[str, str]) -> tuple[str, int]:
    """The full name of the method that is one decoding round, and its lines of code; empty and 0 if there is none."""
    text = texts.get(LOOP, "")
    for owner in (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)):
        for part in (part for part in owner.body if isinstance(part, ast.FunctionDef) and part.name == "step"):
            lines = code_lines(text) & set(range(part.lineno, (part.end_lineno or part.lineno) + 1))
            return f"{LOOP}.{owner.name}.step", len(lines)
    return "", 0


def import_rows(modules: Mapping[str, Path], details: list[str]) -> dict[str, Row]:
    """Levels and circles, of modules and of folders."""
    rows: dict[str, Row] = {}
    at_import, every = (graph_of(modules, all_kinds=all_kinds) for all_kinds in (False, True))
    for what, kind, graph in (
        ("modules", "on module level", at_import),
        ("modules", "all imports", every),
        ("folders", "on module level", by_folder(at_import)),
        ("folders", "all imports", by_folder(every)),
    ):
        chain, members = longest_chain(graph), set(component_of(graph).values())
        circles = sorted(sorted(names) for names in members if len(names) > 1)
        rows[f"levels of {what}, {kind}"] = len(chain)
        rows[f"circles of {what}, {kind}"] = len(circles)
        rows[f"{what} in circles, {kind}"] = sum(map(len, circles))
        details.append(f"longest chain of {what}, {kind}: {' > '.join(chain)}")
        details += [f"circle of {what}, {kind}: {', '.join(names)}" for names in circles]
    return rows


def source_rows(root: Path, texts: Mapping[str, str], python: str) -> dict[str, Row]:
    """Sizes."""
    lengths = {name: len(text.splitlines()) for name, text in texts.items()}
    longest = max(lengths, key=lambda name: lengths[name])
    rows: dict[str, Row] = {
        f"loose Python files in {PACKAGE}/": len(list((root / PACKAGE).glob("*.py"))),
        "longest Python file": f"{lengths[longest]} ({longest})",
        **{f"files above {most} lines": sum(n > most for n in lengths.values()) for most in (250, 350)},
    }
    plain = {name: _FMT.sub("", text) for name, text in texts.items()}
    for how, given in (("pragmas heeded", texts), ("pragmas removed", plain)):
        neat = {name: text for name, text in formatted(given, python).items() if not TRAINING.match(name)}
        rows[f"lines of code without training, {how}"] = sum(len(code_lines(text)) for text in neat.values()) or None
        rows["lines of code of the decoding step"] = decoding_step(neat)[1] or None
    sources = [path for suffix in "ch" for path in (root / PACKAGE).rglob(f"src/**/*.{suffix}")]
    c_code = "\n".join(_C_COMMENT.sub("", path.read_text(encoding="utf-8")) for path in sources)
    return rows | {"lines of C without blank lines and comments": sum(map(bool, map(str.strip, c_code.splitlines())))}


def engine_lines(modules: Mapping[str, Path], texts: Mapping[str, str]) -> list[str]:
    """Lines outside the engines that compare with the name of one."""
    outside = (name for name, path in modules.items() if ENGINES not in home_of(name, path).split("."))
    numbered = ((f"{name}:{n}", line) for name in outside for n, line in enumerate(texts[name].splitlines(), 1))
    return [f"{place}: {line.strip()}" for place, line in numbered if NAMES_AN_ENGINE.search(line)]


def rows_of(root: Path, python: str) -> dict[str, Any]:
    """Everything about one checkout: rows by label, and lines about what is behind the numbers."""
    modules = modules_of(root)
    texts = {name: path.read_text(encoding="utf-8") for name, path in modules.items()}
    defined = {name for text in texts.values() for name in re.findall(r"^ *(?:class|def) (\w+)", text, re.MULTILINE)}
    step, named = decoding_step(texts)[0], engine_lines(modules, texts)
    details = [f"decoding step: {step}", *(f"names an engine: {line}" for line in named)]
    rows = source_rows(root, texts, python) | {"lines outside the engines that compare with their names": len(named)}
    rows |= import_rows(modules, details) | call_rows(root, python, step, defined, details)
    return {"checkout": root.name, "rows": rows, "details": details}


def main() -> None:
    """Measure the checkouts of the command line, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--python", default=sys.executable, help="an interpreter in which it is installed")
    parser.add_argument("--against", type=Path, help="a second checkout")
    parser.add_argument("--against-python", default=sys.executable)
    parser.add_argument("--json", action="store_true", help="print JSON instead, with what is behind the numbers")
    parser.add_argument("--verbose", action="store_true", help="say what is behind the numbers, below the table")
    options = parser.parse_args()
    found = [rows_of(options.checkout.resolve(), options.python)]
    if options.against is not None:
        found.append(rows_of(options.against.resolve(), options.against_python))
    if options.json:
        print(json.dumps(found, indent=1))
        return
    print("| | " + " | ".join(one["checkout"] for one in found) + " |\n|---|" + "---:|" * len(found))
    for label in dict.fromkeys(label for one in found for label in one["rows"]):
        cells = [one["rows"].get(label) for one in found]
        print(f"| {label} | " + " | ".join("-" if cell is None else str(cell) for cell in cells) + " |")
    for one in found if options.verbose else ():
        print(f"\n{one['checkout']}:\n\n" + "\n".join(f"- {line}" for line in one["details"]))


if __name__ == "__main__":
    main()
