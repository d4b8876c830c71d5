"""Laws of what README and docs show and claim, beyond that it runs."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_spec.engines.onnx.kernels.packing import KINDS

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))


def is_print(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"


def glued(block: str) -> Iterator[str]:
    """Yield what would be printed behind a text that does not end its line."""
    for node in ast.walk(ast.parse(block)):
        body = getattr(node, "body", [])
        for loop, after in itertools.pairwise(body) if isinstance(body, list) else ():
            is_open = isinstance(loop, ast.For | ast.AsyncFor) and any(
                is_print(each) and any(keyword.arg == "end" for keyword in getattr(each, "keywords", ()))
                for each in ast.walk(loop)
            )
            if is_open and isinstance(after, ast.Expr) and is_print(after.value) and getattr(after.value, "args", ()):
                yield ast.unparse(after)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_example_prints_behind_a_text_on_its_line(page: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert [line for block in blocks for line in glued(block)] == []


def test_what_is_glued_is_found() -> None:
    loop = "for piece in reply:\n    print(piece, end='')\n"
    assert list(glued(f"with a:\n    b\n{loop}print(1)")) == ["print(1)"]
    assert list(glued(f"{loop}print()\nprint(1)")) == []


def test_the_types_of_weights_that_our_kernels_multiply_are_named() -> None:
    page = ROOT / "docs" / "how-it-works.md"
    (said,) = re.findall(r"^Architectures: [^;]* in (Q4_0[^;]*);", page.read_text("utf-8"), re.MULTILINE)
    assert sorted(re.findall(r"[A-Z]\w+", said)) == sorted(KINDS)
