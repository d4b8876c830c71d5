"""Laws of settings of the environment that cannot be used: one line that names the variable, and no traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fake_hub import FakeHub
from gguf_files import write_gguf

pytestmark = pytest.mark.long

pytest.importorskip("huggingface_hub")

NONSENSE = "nonsense://[::1"
REFUSED = {
    "HTTP_PROXY": NONSENSE,
    "ALL_PROXY": "ftp://127.0.0.1",
    "HTTPS_PROXY": NONSENSE,
    "http_proxy": "http://127.0.0.1:99999",
    "SSL_CERT_FILE": "/there/is/no/file",
    "HF_ENDPOINT": "nonsense",
    "HF_HUB_DOWNLOAD_TIMEOUT": "soon",
    "HF_HUB_ETAG_TIMEOUT": "never",
    "HF_TOKEN": "\N{LATIN SMALL LETTER E WITH ACUTE}secret",
    "HF_TOKEN_PATH": "/",
}
HARMLESS = {
    "https_proxy": "no scheme",
    "NO_PROXY": NONSENSE,
    "no_proxy": ",,;\t*",
    "SSL_CERT_DIR": NONSENSE,
    "HF_HOME": NONSENSE,
    "HF_HUB_CACHE": NONSENSE,
    "HF_HUB_USER_AGENT_ORIGIN": NONSENSE,
    "HF_HUB_DISABLE_XET": NONSENSE,
    "HF_XET_CACHE": NONSENSE,
    "TRANSFORMERS_OFFLINE": NONSENSE,
}
"""Whether they are refused is the libraries' to say."""

ALL = """
import json, os, sys
import edge_spec.cli.pull
from edge_spec.cli import main
for name, value in json.load(sys.stdin).items():
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.dup2(write, 1), os.dup2(write, 2)
        os.environ[name] = value
        main(["pull", "org/tiny-GGUF", "--dry-run"])
    os.close(write)
    with os.fdopen(read, errors="replace") as said:
        print(json.dumps([name, said.read(), os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])]), flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that begin alike")
def test_what_cannot_be_used_is_named_in_a_line(hub: FakeHub, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf")
    hub.repositories = {"org/tiny-GGUF": {"tiny-Q4_0.gguf": path.read_bytes()}}
    bare = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    done = subprocess.run(
        [sys.executable, "-c", ALL],
        input=json.dumps(REFUSED | HARMLESS),
        capture_output=True,
        text=True,
        env={**bare, "HOME": str(tmp_path), "HF_ENDPOINT": hub.address},
        check=True,
    )
    found = {name: (said, code) for name, said, code in map(json.loads, done.stdout.splitlines())}
    assert found.keys() == REFUSED.keys() | HARMLESS.keys()
    for name, (said, code) in found.items():
        assert "Traceback" not in said, said
        assert code in ((1,) if name in REFUSED else (0, 1)), (name, said)
        if code:
            line = said.splitlines()[-1]
            assert line.startswith("edge-spec: error: ") and name in line, said
            assert "secret" not in said


@pytest.mark.parametrize("address", ["https://[::1/a.gguf", "http://a\x7f.example/a.gguf"])
def test_odd_addresses_are_refused_in_a_line(address: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "edge_spec", "pull", address]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "HOME": str(tmp_path)}, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("edge-spec: error: ") and len(done.stderr.splitlines()) == 1
