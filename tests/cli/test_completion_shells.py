"""Laws of completion as a user meets it: in a terminal, in each shell that is installed here."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

pexpect = pytest.importorskip("pexpect")

SHELLS = {
    "bash": (["--norc", "--noprofile", "-i"], ['eval "$(edge-spec completion bash)"']),
    "zsh": (["-f", "-i"], ["autoload -Uz compinit; compinit -u", 'eval "$(edge-spec completion zsh)"']),
    "fish": (["--no-config", "-i"], ["edge-spec completion fish | source"]),
}


@pytest.mark.long
@pytest.mark.skipif(os.name != "posix", reason="needs a pseudo-terminal")
@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_completes_verbs_options_and_models(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    scripts = Path(sys.executable).parent
    if not (scripts / "edge-spec").is_file():
        pytest.skip("the command is not installed beside this interpreter")
    options, setup = SHELLS[shell]
    environment = {**os.environ, "HOME": str(tmp_path), "TERM": "dumb", "PATH": f"{scripts}:{os.environ['PATH']}"}
    terminal = pexpect.spawn(shell, options, env=environment, encoding="utf-8", timeout=30, dimensions=(40, 200))
    try:
        for line in (*setup, "echo rea''dy"):
            terminal.sendline(line)
        terminal.expect("ready")
        for typed, completed in (
            ("edge-spec quant", "quantize"),
            ("edge-spec run --specul", "--speculation"),
            ("edge-spec run smol", "smollm2"),
        ):
            terminal.send(f"{typed}\t")
            assert terminal.expect_exact([completed, pexpect.TIMEOUT], timeout=30) == 0, terminal.before
            # Ctrl-U leaves the line, and nothing is run.
            terminal.send("\x15")
    finally:
        terminal.close(force=True)
