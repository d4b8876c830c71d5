"""The law of old conversations: what version 0.2 has saved goes on with the tokens that 0.2 wrote next.

The files are of the demo family, saved by 0.2.0 on both engines after a whole answer with a drafter, after an overflow
of the context, and after an answer that was cancelled; ``expected.json`` has the tokens of the answer to "And?".
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import edge_spec
from edge_spec.chat import ChatSession
from edge_spec.chat.saving import saved_profile
from edge_spec.engines.onnx.kernels import available

pytestmark = pytest.mark.long

FOLDER = Path(__file__).parent / "saved_by_0_2"
SAVED: dict[str, dict[str, Any]] = json.loads((FOLDER / "expected.json").read_text("utf-8"))


@pytest.mark.parametrize("speculation", ["as saved", "auto"])
@pytest.mark.parametrize("name", SAVED)
def test_a_conversation_goes_on(name: str, speculation: str, tmp_path: Path, probe_cache: Path) -> None:
    expected, engine = SAVED[name], Path(name).stem.split("-")[1]
    if engine == "onnx" and available() is not None:
        pytest.skip("the kernels were not built")
    mode = expected["speculation"] if speculation == "as saved" else "auto"
    path = shutil.copy(FOLDER / name, tmp_path)
    given: dict[str, Any] = {"engine": engine, "n_ctx": expected["n_ctx"], "n_threads": 1, "cache_dir": probe_cache}
    with edge_spec.load("demo", speculation=mode, session=path, **given) as model:
        assert dict(model.profile.facts)["kv"] == saved_profile(path)["kv"]
        if model.profile.name != expected["profile"]:
            pytest.skip("what rounds is something else on this device")
        session = ChatSession.load(model, path)
        reply = session.send("And?")
        reply.read()
        assert reply.token_ids == expected["token_ids"]
        assert (session.n_tokens, session.n_seen) == (expected["n_tokens"], expected["n_seen"])
        # Its cells were used: only the new question was read.
        assert reply.prompt_progress[0] < 25
