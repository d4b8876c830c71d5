"""Laws of the page's files: they come with strict rules, need no key, and name nothing from another host."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx2
import pytest

NAMES = {each.name for each in files("edge_spec.server").joinpath("page").iterdir()}


@pytest.mark.long
def test_every_file_is_served_without_a_key_and_with_strict_rules(serve: Callable[..., Any]) -> None:
    served = serve(api_key="s3cret")
    for path in ("/", *(f"/{name}" for name in NAMES - {"index.html"})):
        found = httpx2.get(served.url + path)
        assert found.status_code == 200, path
        rules = found.headers["content-security-policy"]
        assert rules.startswith("default-src 'none'; ") and "unsafe" not in rules
        assert found.headers["x-content-type-options"] == "nosniff"
    assert httpx2.get(served.url + "/index.html").status_code == 401


def test_nothing_comes_from_another_host() -> None:
    for name in NAMES:
        text = files("edge_spec.server").joinpath("page", name).read_text("utf-8")
        assert not re.search(r"(src|href|url|import|from|fetch)\W{1,3}(https?:)?//", text), name
        assert "innerHTML" not in text and "eval(" not in text, name


def test_what_the_page_names_is_there() -> None:
    folder = files("edge_spec.server").joinpath("page")
    texts = {name: folder.joinpath(name).read_text("utf-8") for name in NAMES}
    page, scripts = texts["index.html"], "".join(text for name, text in texts.items() if name.endswith(".js"))
    named = set(re.findall(r'(?:href|src)="([\w.]+)"', page))
    named |= set(re.findall(r'from "\./([\w.]+)"', scripts))
    assert named == NAMES - {"index.html"}
    made = {"retry", "continue"}
    for name in set(re.findall(r'\$\("([\w-]+)"\)', scripts)) - made:
        assert f'id="{name}"' in page, name


def test_the_figures_do_not_touch_the_ring_of_the_input_above_them() -> None:
    css = files("edge_spec.server").joinpath("page", "page.css").read_text("utf-8")
    ring = re.search(r"^:focus-visible { outline: (\d+)px .*; outline-offset: (\d+)px; }$", css, re.MULTILINE)
    margin = re.search(r"^#figures { .*\bmargin-top: ([\d.]+)rem;", css, re.MULTILINE)
    assert ring is not None and margin is not None
    assert 16 * float(margin[1]) > int(ring[1]) + int(ring[2])


NODES = """
class Made {
  constructor() { this.parts = []; }
  append(...parts) { this.parts.push(...parts); }
  text() { return this.textContent ?? this.parts.map((each) => each.text?.() ?? each).join(""); }
  links() { return (this.href ? [this] : []).concat(this.parts.flatMap((each) => each.links?.() ?? [])); }
}
globalThis.document = { createElement: () => new Made() };
const { markdown } = await import("./markdown.js");
const texts = JSON.parse(process.argv[2]);
console.log(JSON.stringify(texts.map((text) => markdown(text).flatMap((each) => each.links())[0].text())));
"""

LINKS = {
    "https://bank.example/login?a=1": "",
    "https://bank.example": "",
    "https://bank.example:8443/x": "",
    "https://www.bank.example@evil.example/login": " (evil.example)",
    "https://bank.example:443@evil.example/login": " (evil.example)",
    "https://bank.example%2F@evil.example": " (evil.example)",
    "https://evil.example\\@bank.example": " (evil.example)",
    "https://\u0430pple.com/": " (xn--pple-43d.com)",
    "https://bank.example\u200b.evil.example": " (bank.example.evil.example)",
    "https://[bank": " (nowhere)",
}


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node")
def test_bare_links_say_which_host_they_lead_to(tmp_path: Path) -> None:
    for each in files("edge_spec.server").joinpath("page").iterdir():
        if each.name.endswith(".js"):
            (tmp_path / each.name).write_text(each.read_text("utf-8"), encoding="utf-8")
    (tmp_path / "package.json").write_text('{"type": "module"}', encoding="utf-8")
    (tmp_path / "links.mjs").write_text(NODES, encoding="utf-8")
    ran = subprocess.run(["node", tmp_path / "links.mjs", json.dumps([*LINKS])], capture_output=True, check=True)
    assert json.loads(ran.stdout) == [f"{address}{host}" for address, host in LINKS.items()]
