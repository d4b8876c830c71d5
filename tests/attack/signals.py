"""Interrupt and end the command at random moments, from the first line of its entry point to its last.

Each case has a number, which draws the verb, the entry point, the signal and the moment; what is found is printed as
the command that shows it again, though moments on a busy machine differ.

    python tests/attack/signals.py --cases 200
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

__all__ = ["attack"]

_SECONDS = 20.0
_ENTRIES = {
    "edge-spec": "from edge_spec.cli import main; sys.exit(main())",
    "-m edge_spec": "runpy.run_module('edge_spec', run_name='__main__', alter_sys=True)",
}
"""As the console script begins, and as Python begins a module."""

_BEGINS = "import os, re, runpy, sys; os.write(int(sys.argv.pop(1)), b'.')\n"
"""Up to here it is Python that starts."""

_SAME = ("demo", "--seed", "1", "--threads", "1")
_VERBS: dict[str, tuple[tuple[str, ...], bytes]] = {
    "list": (("list",), b""),
    "plan": (("plan", "demo"), b""),
    "run": (("run", *_SAME, "-n", "60", "--ignore-eos", "-p", "Hello"), b""),
    "several": (("run", *_SAME, "-n", "20", "--answers", "3", "-p", "Hello"), b""),
    "chat": (("chat", *_SAME, "-n", "30", "--session", "held.chat"), b"Hello\nTell me more\n"),
    "serve": (("serve", "demo", "--port", "0", "--threads", "1"), b""),
}
_ENDS = {signal.SIGINT: (130, -signal.SIGINT), signal.SIGTERM: (143, -signal.SIGTERM)}
"""A shell reports a program that a signal ended by 128 and its number."""

_OURS = re.compile(r'File ".*/(?:edge_spec|cli|memory|models)/(?!__(?:init|main)__\.py", line \d+, in <module>)')
"""Frames of ours, but for those modules that find the function that listens."""

_FORBIDDEN = (b"Traceback", b"Exception ignored", b"KeyboardInterrupt", b"SystemExit", b"Fatal", b"terminate called")


@dataclass(frozen=True)
class _Ended:
    """How a command ended, and what it wrote."""

    code: int | None
    out: bytes
    err: bytes
    seconds: float


def _run(verb: str, entry: str, home: Path, number: int, moment: float) -> _Ended:
    """Run a verb, and send a signal so many seconds after its entry point began."""
    arguments, typed = _VERBS[verb]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("EDGE_SPEC_", "XDG_"))}
    (home / "held.chat").unlink(missing_ok=True)
    reads, writes = os.pipe()
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        stdin.write(typed)
        stdin.seek(0)
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _BEGINS + _ENTRIES[entry], str(writes), *arguments],
            stdin=stdin,
            stdout=out,
            stderr=err,
            env=kept | {"HOME": str(home), "OMP_WAIT_POLICY": "passive"},
            cwd=home,
            pass_fds=[writes],
        )
        os.close(writes)
        os.read(reads, 1)
        os.close(reads)
        began = time.monotonic()
        try:
            process.wait(moment)
        except subprocess.TimeoutExpired:
            process.send_signal(number)
        try:
            code: int | None = process.wait(_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            code = None
        seconds = time.monotonic() - began
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read())
    return _Ended(code, *texts, seconds)


def _fault(ended: _Ended, whole: _Ended, number: int) -> str:
    """Return what no signal may bring about, in a few words; empty if it did not.

    Args:
        whole: how the same verb ends by itself.
    """
    if ended.code is None:
        return f"no end after {_SECONDS:.0f} s"
    if _is_deaf(ended):
        return ""
    found = [word.decode() for word in _FORBIDDEN if word in ended.err]
    if found:
        return f"{found} in {ended.err.decode(errors='replace')!r}"
    if ended.code in _ENDS[signal.Signals(number)]:
        return ""
    # It was done before the signal came; a server that serves stops in order, by either signal.
    is_whole = ended.out.count(b"\n") == whole.out.count(b"\n")
    if ended.code == 0 and ((is_whole and whole.out) or ended.err.endswith(b"edge-spec: stopped\n")):
        return ""
    return f"exit code {ended.code} and {ended.err.decode(errors='replace')!r}"


def _is_deaf(ended: _Ended) -> bool:
    """Return whether Python had not come to our first function: for 0.8 ms nobody of ours can listen."""
    return b"Traceback" in ended.err and not _OURS.search(ended.err.decode(errors="replace"))


def attack(numbers: range, seconds: float, told: Callable[[str], object]) -> tuple[Counter[str], int]:
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
        whole: dict[str, _Ended] = {}
        for case in numbers:
            if time.monotonic() > until:
                return ended, case
            random = Random(case)
            verb, entry = random.choice([*_VERBS]), random.choice([*_ENTRIES])
            number = random.choice([*_ENDS])
            if verb not in whole:
                # The first one also fills the caches.
                for _ in range(2):
                    whole[verb] = _run(verb, entry, home, signal.SIGTERM, 3.0 if verb == "serve" else _SECONDS)
                assert whole[verb].code == 0, whole[verb]
            last = whole[verb].seconds * 1.1
            # Half of them among the first imports, where most was found.
            moment = random.choice([random.uniform(0, last), 0.0001 * (last / 0.0001) ** random.random()])
            outcome = _run(verb, entry, home, number, moment)
            fault = _fault(outcome, whole[verb], number)
            name = "deaf" if _is_deaf(outcome) else "done" if outcome.code == 0 else signal.Signals(number).name
            ended["fault" if fault else name] += 1
            if fault:
                told(
                    f"{verb} by {entry}, {signal.Signals(number).name} after {moment * 1000:.1f} ms: {fault}: "
                    f"python tests/attack/signals.py --first {case} --cases 1"
                )
    return ended, numbers.stop


def main() -> int:
    """Attack as the command says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--cases", type=int, default=10**9)
    parser.add_argument("--seconds", type=float, default=3600.0)
    given = parser.parse_args()
    ended, left = attack(range(given.first, given.first + given.cases), given.seconds, print)
    print(f"{ended.total()} cases: {dict(ended)}; continue with --first {left}")
    return int(bool(ended["fault"]))


if __name__ == "__main__":
    sys.exit(main())
