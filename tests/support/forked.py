"""Running what may end the process: in a fork of this one, which is timed, measured and looked at afterwards."""

from __future__ import annotations

import os
import re
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Outcome", "forked"]


@dataclass(frozen=True)
class Outcome:
    """How it ended.

    Attributes:
        code: exit status, or the number of the signal, negative; None where it had to be killed.
        out, err: what it wrote.
        peak_bytes: the most memory that it held.
    """

    code: int | None
    out: str
    err: str
    peak_bytes: int
    seconds: float

    def fault(self, *, most_bytes: int, most_lines: int = 4) -> str:
        """Return what no input may bring about, in a few words; empty if it did not."""
        if self.code is None:
            return f"no end after {self.seconds:.0f} s"
        if self.code < 0:
            return f"ended by {signal.Signals(-self.code).name}"
        if "Traceback" in self.err:
            places = re.findall('^  File (".*)', self.err, re.MULTILINE)
            return f"a traceback: {self.err.strip().splitlines()[-1][:160]} ({places[-1] if places else 'nowhere'})"
        if self.peak_bytes > most_bytes:
            return f"{self.peak_bytes >> 20} MiB, and {most_bytes >> 20} were allowed"
        if self.code and not self.err.strip():
            return f"no word about exit code {self.code}"
        if len(self.err.strip().splitlines()) > most_lines:
            return f"{len(self.err.strip().splitlines())} lines of error"
        return ""


def forked(work: Callable[[], object], *, seconds: float = 10.0, computing_s: int | None = None) -> Outcome:
    """Run something in a fork of this process; what it raises is its traceback.

    Args:
        computing_s: seconds of the processor after which it is ended by SIGXCPU, which on a busy machine says more of
            a loop without an end than the clock does.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        began = time.monotonic()
        child = os.fork()
        if not child:
            code = 70
            try:
                os.setsid()
                if computing_s is not None:
                    import resource  # not there on Windows, which has no forks

                    resource.setrlimit(resource.RLIMIT_CPU, (computing_s, computing_s + 1))
                for number, file in ((0, None), (1, out), (2, err)):
                    os.dup2(os.open(os.devnull, os.O_RDONLY) if file is None else file.fileno(), number)
                # Whoever captures what is printed here must not get it.
                sys.stdout, sys.stderr = (open(number, "w", encoding="utf-8", closefd=False) for number in (1, 2))  # noqa: SIM115
                work()
                code = 0
            except SystemExit as left:
                code = left.code if isinstance(left.code, int) else bool(left.code)
            except BaseException:
                code = 70
                os.write(2, traceback.format_exc().encode("utf-8", "replace"))
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        handle = os.pidfd_open(child)
        try:
            has_ended = bool(select.select([handle], [], [], seconds)[0])
            if not has_ended:
                os.killpg(child, signal.SIGKILL)
            _, status, usage = os.wait4(child, 0)
        finally:
            os.close(handle)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read(1 << 20).decode("utf-8", "replace"))
        code = os.waitstatus_to_exitcode(status) if has_ended else None
        return Outcome(code, *texts, usage.ru_maxrss << 10, time.monotonic() - began)
