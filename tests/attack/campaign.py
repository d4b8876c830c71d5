"""Attack with as many random inputs as there is time for: models, conversations, schemas.

Each case has a number and is the same for it, so a run is resumed with ``--first``, and what is found is printed as the
command that shows it again. Cases run in forks of this process, which are timed and measured.

    python tests/attack/campaign.py gguf --seconds 3600
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "support"))

from chat_world import chat_model, chat_table
from forked import forked
from gguf_files import write_gguf
from hostile_gguf import read_gguf
from json_schemas import SCHEMAS
from mutations import Mutations

from edge_spec import load
from edge_spec.chat import ChatSession
from edge_spec.cli import main as command
from edge_spec.errors import EdgeSpecError

__all__ = ["KINDS", "attack"]

_BUDGET = 600 << 20
_MORE = 64 << 20
_SECONDS = 30.0

Case = Callable[[int, Path], Callable[[], object]]


def gguf(number: int, folder: Path) -> Callable[[], object]:
    """A model with some of what it says changed, run by one of the engines or planned."""
    base = folder / "sound.gguf"
    model = read_gguf(base if base.exists() else write_gguf(base)).change(number)
    path = str(model.write(folder / "changed.gguf"))
    common = [path, "--memory", f"{_BUDGET >> 20}MiB"]
    text = ["-p", "Hello there", "--max-tokens", "3", "--seed", "1"]
    chosen = (["--engine", "llama", "--raw"], ["--engine", "onnx"], ["--speculation", "ngram"])[number % 4 % 3]
    arguments = ["plan", *common] if number % 4 == 3 else ["run", *common, *text, *chosen]
    return lambda: command(arguments)


def session(number: int, folder: Path) -> Callable[[], object]:
    """A conversation with values or bytes changed, loaded and continued."""
    good, bad = folder / "good.chat", folder / "bad.chat"
    model = chat_model(chat_table(end=1.0), n_ctx=200)
    if not good.exists():
        chat = model.chat(seed=2, max_tokens=12)
        chat.send("abc").read()
        chat.save(good)
    mutations = Mutations(number)
    if number % 3 == 0:
        bad.write_bytes(mutations.of_bytes(good.read_bytes()))
    else:
        with zipfile.ZipFile(good) as archive, zipfile.ZipFile(bad, "w") as made:
            for name in archive.namelist():
                content = archive.read(name)
                is_text = name.endswith(".json")
                made.writestr(name, json.dumps(mutations.of_json(json.loads(content))) if is_text else content)
    return lambda: _told(lambda: ChatSession.load(model, bad).send("cab", max_tokens=2).read())


def schema(number: int, folder: Path) -> Callable[[], object]:
    """A JSON schema with values changed, which a reply has to obey."""
    mutations = Mutations(number)
    changed = mutations.of_json(mutations.random.choice([*SCHEMAS.values()]))

    def write() -> None:
        with load("demo", speculation="off") as model:
            model.generate("x", json_schema=changed, max_tokens=4).read()

    return lambda: _told(write)


KINDS: dict[str, Case] = {"gguf": gguf, "session": session, "schema": schema}


def _at_home(work: Callable[[], object], home: Path) -> Callable[[], object]:
    def at_home() -> None:
        os.environ.update(dict.fromkeys(("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"), str(home)))
        work()

    return at_home


def _told(work: Callable[[], object]) -> None:
    """Do something as a program would that prints our errors and no others."""
    try:
        work()
    except EdgeSpecError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)


def attack(kind: str, numbers: range, seconds: float, told: Callable[[str], object]) -> tuple[Counter[str], int]:
    """Run cases until the time is over.

    Args:
        told: called with each find, a line.

    Returns:
        How many there were, by how they ended, and the number of the first one that was left.
    """
    ended: Counter[str] = Counter()
    until = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        for number in numbers:
            if time.monotonic() > until:
                return ended, number
            outcome = forked(_at_home(KINDS[kind](number, home), home), seconds=_SECONDS)
            fault = outcome.fault(most_bytes=_BUDGET + _MORE, most_lines=6)
            ended["fault" if fault else "refused" if outcome.code else "done"] += 1
            if fault:
                told(f"{fault}: python tests/attack/campaign.py {kind} --first {number} --cases 1")
    return ended, numbers.stop


def main() -> int:
    """Attack as the command says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--cases", type=int, default=10**9)
    parser.add_argument("--seconds", type=float, default=60.0)
    given = parser.parse_args()
    numbers = range(given.first, given.first + given.cases)
    ended, left = attack(given.kind, numbers, given.seconds, print)
    print(f"{ended.total()} cases: {dict(ended)}; continue with --first {left}")
    return int(bool(ended["fault"]))


if __name__ == "__main__":
    sys.exit(main())
