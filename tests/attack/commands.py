"""The real command with files, settings, records, caches, options and hubs that are wrong, by number."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
from fake_hub import COMMIT, FAULTS, fake_hub
from gguf_files import write_gguf
from hostile_gguf import read_gguf
from json_schemas import SCHEMAS
from mutations import ODD, Mutations

from edge_spec.cli.command import verb

__all__ = ["command"]

_SECONDS = 60.0
_COMMAND = Path(sys.executable).with_name("edge-spec")
_SHORT = ("--memory", "600MiB", "--ctx", "256")
_VERBS: dict[str, tuple[str, ...]] = {
    "run": ("run", "MODEL", "-p", "Hello", "-n", "2", *_SHORT),
    "chat": ("chat", "MODEL", "--session", "held.chat", "-n", "2", *_SHORT),
    "check": ("check", "MODEL", "--limit", "1", "--modes", "ngram", "-n", "2", *_SHORT),
    "bench": ("bench", "MODEL", "--limit", "1", "--rounds", "1", "--modes", "ngram", "-n", "2", *_SHORT),
    "pair": ("pair", "MODEL", "--limit", "1", "--rounds", "1", "-n", "2", *_SHORT),
    "plan": ("plan", "MODEL", *_SHORT),
    "info": ("info", "MODEL"),
    "quantize": ("quantize", "MODEL", "made.gguf", "--type", "Q8_0", "--requantize"),
    "serve": ("serve", "MODEL", "--port", "0", *_SHORT),
    "rm": ("rm", "MODEL"),
    "list": ("list",),
    "list --json": ("list", "--json"),
    "cache list": ("cache", "list"),
    "cache clear": ("cache", "clear"),
    "cache verify": ("cache", "verify"),
    "config": ("config",),
    "config --json": ("config", "--json"),
    "doctor": ("doctor",),
    "completion": ("completion", "bash"),
    "pull": ("pull", "org/tiny-GGUF", "--yes"),
}
"""Arguments by name; ``MODEL`` is that of the case."""

_OF_MODELS = ("info", "plan", "info", "plan", "run", "check", "bench", "pair", "chat", "quantize", "serve", "rm")
_OF_RECORDS = ("list", "list --json", "cache list", "cache clear", "info", "plan", "config", "doctor", "run", "pull")
_SETTINGS: dict[str, Any] = {
    "memory": "500MiB",
    "model": "demo",
    "ctx": 256,
    "temperature": 0.5,
    "engine": "onnx",
    "threads": 1,
    "model-dir": "models",
    "cache-dir": "caches",
    "run": {"max-tokens": 2, "seed": 1},
    "chat": {"system": "Be brief."},
}
_RECORDS = (
    ".lmstudio-home-pointer",
    ".lmstudio/settings.json",
    ".ollama/models/manifests/registry.ollama.ai/library/a/1",
    ".cache/huggingface/hub/models--a--b/refs/main",
    "edge-spec/models/own/family.json",
    "edge-spec/models/own/config.json",
    "edge-spec/models/own/tokenizer.json",
    "edge-spec/models/.partial/0123/name",
    "edge-spec/catalogue.toml",
)
_RECORD = {
    "layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256-0"}],
    "downloadsFolder": "/nowhere",
    "target": "a.gguf",
    "draft": "b.gguf",
    "model_type": "llama",
    "vocab_size": 384,
}
_WORK = {"--answers", "--limit", "--max-tokens", "--rounds", "--threads", "--threads-batch"}
"""Options that ask for much work, which is then done."""

_WORDS = ("", "-1", "0", "nan", "1e999", "../../x", "2GiB", "{", "demo", "a:1", "\x1b[2J", "q4_0", "ngram,,", "1/2/3")


class _Home:
    """The home of a case, in which something is wrong.

    Attributes:
        folder: where it lies; deep enough for ``../../x`` to be inside of what is removed.
        sound: files that are damaged for cases, made once.
        caches: the folder of caches.
    """

    def __init__(self, place: Path, mutations: Mutations) -> None:
        self.folder, self.sound, self.caches = place / "of" / "the" / "case", place / "sound", place / "caches"
        self._mutations = mutations
        shutil.rmtree(place / "of", ignore_errors=True)
        for folder in (self.folder, self.sound):
            folder.mkdir(parents=True, exist_ok=True)

    def model(self) -> list[str]:
        """A GGUF of which values or bytes are changed."""
        chance, base, path = self._mutations.random, self.sound / "tiny.gguf", self.folder / "changed.gguf"
        if not base.exists():
            write_gguf(base)
        if chance.random() < 0.3:
            path.write_bytes(self._mutations.of_bytes(base.read_bytes(), most=20_000))
        else:
            read_gguf(base).change(chance.randrange(1 << 30)).write(path)
        return self._verb(chance.choice(_OF_MODELS), path.name)

    def settings(self) -> list[str]:
        """Settings in TOML, or what looks like it."""
        chance = self._mutations.random
        self._write("edge-spec/config.toml", _toml(self._mutations.of_json(_SETTINGS)).encode("utf-8", "replace"))
        return self._verb(chance.choice(_OF_RECORDS), "demo")

    def record(self) -> list[str]:
        """What other programs keep, and we."""
        chance = self._mutations.random
        path = chance.choice(_RECORDS)
        self._write(path, json.dumps(self._mutations.of_json(_RECORD)).encode())
        return self._verb(chance.choice(_OF_RECORDS), chance.choice(("demo", "own", "a:1", path)))

    def cache(self) -> list[str]:
        """Files of the cache, which an earlier command has written."""
        if not self.caches.exists():
            run(self._verb("run", "demo"), self)
        changed = self.folder / "caches"
        shutil.copytree(self.caches, changed)
        self.caches = changed
        files = sorted(path for path in changed.rglob("*") if path.is_file() and path.stat().st_size < 1 << 20)
        for path in self._mutations.random.choices(files, k=2):
            path.write_bytes(self._mutations.of_bytes(path.read_bytes()))
        return self._verb(self._mutations.random.choice(("run", "run", "plan", "cache list", "cache clear")), "demo")

    def given(self) -> list[str]:
        """A file that an option names."""
        prompts = json.dumps({"prompt": "Hello", "category": "a"}).encode() + b"\nWhy?\n"
        name, option, content = self._mutations.random.choice(
            (
                ("check", "--prompts", prompts),
                ("run", "--file", b"Hello there"),
                ("run", "--json-schema", json.dumps(self._mutations.of_json(SCHEMAS["person"])).encode()),
                ("run", "--grammar", b'root ::= [a-z]{1,4} "."'),
            )
        )
        (self.folder / "given").write_bytes(self._mutations.of_bytes(content))
        arguments = self._verb(name, "demo")
        if option == "--file":
            del arguments[2:4]
        return [*arguments, option, "given"]

    def session(self) -> list[str]:
        """A conversation of which bytes are changed."""
        sound, held = self.sound / "held.chat", self.folder / "held.chat"
        if not sound.exists():
            run(self._verb("chat", "demo"), self)
            held.rename(sound)
        held.write_bytes(self._mutations.of_bytes(sound.read_bytes()))
        return self._verb("chat", "demo")

    def options(self) -> list[str]:
        """Options that nobody expects, or an argument too many."""
        chance, name = self._mutations.random, self._mutations.random.choice([*_VERBS])
        arguments = self._verb(name, "demo")
        found = verb(arguments[0])
        options = [each for each in found.params if isinstance(each, click.Option)] if found else []
        flags = sorted({max(each.opts, key=len) for each in options} - _WORK)
        for _ in range(chance.choice((1, 1, 2)) if flags else 0):
            odd = chance.choice([*_WORDS, *map(str, ODD)])
            # What no program can be given.
            arguments += [chance.choice(flags), odd.encode("utf-8", "replace").decode().replace("\0", "")]
        return arguments if flags and chance.random() < 0.9 else [*arguments, chance.choice(_WORDS)]

    def _verb(self, name: str, model: str) -> list[str]:
        return [model if each == "MODEL" else each for each in _VERBS[name]]

    def _write(self, name: str, content: bytes) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self._mutations.of_bytes(content) if self._mutations.random.random() < 0.4 else content)


def _toml(settings: Any) -> str:
    """Return settings as TOML, as far as there is a way to write them."""
    pairs = settings.items() if isinstance(settings, dict) else [("memory", settings)]
    lines = [f"{json.dumps(name)} = {json.dumps(value)}" for name, value in pairs if not isinstance(value, dict)]
    lines += [f"[{json.dumps(name)}]\n{_toml(value)}" for name, value in pairs if isinstance(value, dict)]
    return "\n".join(lines)


def run(arguments: Sequence[str], home: _Home, hub: str = "") -> int:
    """Run the command, which writes where this process does; a server is ended as soon as it serves.

    Raises:
        AssertionError: a signal ended it, or it does not end.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("EDGE_SPEC_", "XDG_"))}
    own = dict.fromkeys(("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"), str(home.folder))
    own |= {"XDG_CACHE_HOME": str(home.caches), "HF_ENDPOINT": hub or "http://127.0.0.1:1"}
    serves = arguments[0] == "serve"
    process = subprocess.Popen(
        [str(_COMMAND), *arguments],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE if serves else None,
        env=kept | own,
        cwd=home.folder,
    )
    try:
        if process.stderr is not None:
            for line in process.stderr:
                os.write(2, line)
                if b"http://" in line:
                    process.terminate()
        process.communicate(b"Hello\n", timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise AssertionError(f"no end: {list(arguments)}") from None
    assert process.returncode >= 0, f"ended by {signal.Signals(-process.returncode).name}: {list(arguments)}"
    return process.returncode


def command(number: int, folder: Path) -> Callable[[], object]:
    """A verb, and something that is wrong in its home, its options, or what a hub says."""
    mutations = Mutations(number)
    home = _Home(folder / "command", mutations)
    kinds = (home.model, home.settings, home.record, home.options, home.given, home.session, home.cache)
    chance = mutations.random

    def call() -> None:
        with fake_hub() as hub:
            hub.repositories = {"org/tiny-GGUF": {"tiny-Q4_0.gguf": b"GGUF" * 25, "config.json": b"{}"}}
            file = {"rfilename": "tiny-Q4_0.gguf", "size": 99, "blobId": "b", "lfs": {"sha256": "0" * 64, "size": 99}}
            hub.listing = json.dumps(mutations.of_json({"sha": COMMIT, "siblings": [file], "tags": []})).encode(), {}
            # One that is busy is asked again after seconds.
            faults = [each for each in FAULTS if each not in ("busy", "broken", "unavailable")]
            hub.fault = lambda: chance.choice((*faults, *[""] * 12))
            sys.exit(run(kinds[number % len(kinds)](), home, hub.address))

    return call
