"""Laws of recurrent models and hybrids on llama.cpp: where they go back to, and that drafts change nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hybrid_files import HybridFiles
from hybrid_shapes import SMALL_HYBRIDS, write_hybrid
from hypothesis import given, settings
from hypothesis import strategies as st
from logits_rows import Fresh
from lone_text import lone_text
from recorded_drafts import recorded_mode

import edge_spec
from edge_spec.cli import main
from edge_spec.engines.llama.architectures import KEEPS_SNAPSHOTS, RECURRENT
from edge_spec.engines.llama.engine import LlamaEngine, open_llama
from edge_spec.engines.llama.pool import LlamaPath
from edge_spec.engines.llama.recurrent import RecurrentPath
from edge_spec.engines.llama.settings import LlamaSettings
from edge_spec.errors import Cancelled
from edge_spec.llama_cpp.weights import LlamaWeights
from edge_spec.loading import plan
from edge_spec.models import inspect
from edge_spec.speculation.language_model import Logits
from edge_spec.speculation.tree import Tree

pytestmark = pytest.mark.long

END = 2
PROMPTS = ("The quick brown fox", "In the beginning there was", "0123456789 " * 12)
WITH_SNAPSHOTS = ("lfm2", "qwen35", "nemotron_h")
N_VOCAB = 384


@pytest.fixture(scope="session")
def opened(hybrids: HybridFiles) -> Iterator[dict[str, LlamaPath]]:
    """A target of each architecture, with an empty cache."""
    weights = {name: LlamaWeights(hybrids[name]) for name in SMALL_HYBRIDS}
    asked = LlamaSettings(n_ctx=400, n_threads=1, max_rows=6, prefill_chunk=32)
    models = {name: lone_text(open_llama(each, asked, file=name, cache_dir=None)[0]) for name, each in weights.items()}
    yield models
    for model in models.values():
        model.close()
    for each in weights.values():
        each.close()


def loaded(path: Path, mode: Any = "off", **values: Any) -> edge_spec.TextModel:
    return edge_spec.load(path, speculation=mode, **{"engine": "llama", "n_ctx": 700, "n_threads": 1, **values})


# --- what is found out


def test_the_architectures_are_those_of_the_library(opened: dict[str, LlamaPath]) -> None:
    assert set(opened) <= RECURRENT
    for name, model in opened.items():
        assert isinstance(model, RecurrentPath)
        assert model.settings.n_snapshots == (5 if name in KEEPS_SNAPSHOTS else 0)
        assert model.capabilities.rollback == model.settings.n_snapshots
        assert model.capabilities.max_rows == model.settings.n_snapshots + 1
        assert model.capabilities.identity == "bitwise"
        assert not model.capabilities.takes_trees
        assert not model.capabilities.can_shift


def test_there_are_as_many_snapshots_as_the_weights_leave_room_for(hybrids: HybridFiles) -> None:
    """Those of 16 rows, 8 or 4, up to an eighth of the weights; 4 rows and plain decoding may take more."""
    file = inspect(hybrids["qwen35"])
    for n, offered in ((15, [16, 8, 4]), (7, [8, 4]), (3, [4]), (1, [4])):
        full = replace(file, state_bytes=file.weight_bytes // 8 // n)
        assert list(LlamaEngine().rows(full, 16, drafts=True)) == offered
        assert list(LlamaEngine().rows(full, 16, drafts=False)) == [*offered, 1]
        if n > 3:
            more = replace(full, state_bytes=full.state_bytes + 1)
            assert list(LlamaEngine().rows(more, 16, drafts=True)) == offered[1:]
    for name in ("falcon-h1", "mamba"):
        assert list(LlamaEngine().rows(inspect(hybrids[name]), 16, drafts=False)) == [1]


def test_the_plan_keeps_as_many_snapshots_as_the_budget_has_room_for(tmp_path: Path) -> None:
    """And counts each of them: with less memory there are fewer, before anything else gives way."""
    shape = replace(SMALL_HYBRIDS["qwen35"], n_vocab=160_000, tied=True)
    path = write_hybrid(tmp_path / "large.gguf", shape, "Q4_0")
    state_bytes = inspect(path).state_bytes
    asked: dict[str, Any] = {"engine": "llama", "n_ctx": 700, "speculation": "ngram", "held_bytes": 60 << 20}
    plans = [plan(path, memory=1 << 32, **asked).chosen]
    plans += [plan(path, memory=plans[-1].needed_bytes - 1, **asked).chosen]
    plans += [plan(path, memory=plans[-1].needed_bytes - 1, **asked).chosen]
    assert [(each.choices["chunk"], each.choices["rows"]) for each in plans] == [(512, 16), (512, 8), (512, 4)]
    for each in plans:
        rows = each.models["target"].max_rows
        assert each.parts["target"].snapshot_bytes == (rows - 1) * each.parts["target"].state_bytes
        assert each.parts["target"].state_bytes == pytest.approx(state_bytes, rel=0.02)


def test_a_model_as_deep_as_real_ones_has_no_more_snapshots_than_graphs_have_room_for(tmp_path: Path) -> None:
    """With 16 rows llama.cpp would end the process, and a plan asks it as well."""
    shape = replace(
        SMALL_HYBRIDS["lfm2"],
        architecture="lfm2moe",
        n_layers=24,
        attention=(2, 6, 10, 14, 18, 21),
        experts=(32, 4, 32),
        dense=2,
    )
    path = write_hybrid(tmp_path / "deep.gguf", shape, "Q8_0", seed=1)
    asked = ("--engine", "llama", "--ctx", "640", "--speculation", "ngram", "--json")
    command = [sys.executable, "-m", "edge_spec", "plan", str(path), *asked]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["chosen"]["choices"]["rows"] == 8
    with loaded(path, "ngram", max_rows=16) as model:
        assert model.followed["target"].model.capabilities.max_rows == 8
        ask(model, PROMPTS[0], 0, 1.0, 60)


@pytest.mark.parametrize(
    ("name", "mode", "why"),
    [
        ("qwen35", "tree", "this model's recurrent layers take no trees"),
        ("qwen35", "ngram", ""),
        ("falcon-h1", "ngram", "llama.cpp keeps no earlier states of this model's recurrent layers"),
        ("mamba", "auto", "llama.cpp keeps no earlier states of this model's recurrent layers"),
    ],
)
def test_a_mode_that_a_model_cannot_verify_is_off_with_its_reason(
    hybrids: HybridFiles, name: str, mode: str, why: str
) -> None:
    smaller = {"draft": hybrids[f"{name}-draft"]} if mode == "tree" else {}
    with loaded(hybrids[name], mode, **smaller) as model:
        assert model.mode == ("off" if why else mode)
        assert list(model.notes) == ([f"speculation {mode!r} is off: {why}"] if why else [])
        text = ask(model, PROMPTS[0], 0, 1.0, 60).token_ids
    with loaded(hybrids[name]) as model:
        assert ask(model, PROMPTS[0], 0, 1.0, 60).token_ids == text


@pytest.mark.parametrize("name", WITH_SNAPSHOTS)
def test_states_and_snapshots_take_what_was_planned(hybrids: HybridFiles, name: str) -> None:
    with loaded(hybrids[name], "ngram") as model:
        lines = {line.name: line for line in model.ledger if line.owner == "target"}
        n_snapshots = model.followed["target"].model.capabilities.rollback
    state, snapshots = lines["recurrent state"], lines["snapshots for drafts"]
    assert snapshots.predicted_bytes == n_snapshots * state.predicted_bytes > 0
    for line in (state, snapshots, lines["KV cache"]):
        assert line.measured_bytes is not None
        assert abs(line.measured_bytes - line.predicted_bytes) < 8 << 10


def test_info_says_how_far_a_model_goes_back(hybrids: HybridFiles, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("lfm2", "falcon-h1"):
        with pytest.raises(SystemExit):
            main(["info", str(hybrids[name]), "--json"])
        found = json.loads(capsys.readouterr().out)
        with loaded(hybrids[name], "ngram" if name in KEEPS_SNAPSHOTS else "off") as model:
            most = model.followed["target"].model.capabilities.rollback
        own = {"onnx": 15} if name == "lfm2" else {}
        assert (found["taken_back"], found["state_bytes"] > 0) == ({**own, "llama": most}, True)
        with pytest.raises(SystemExit):
            main(["info", str(hybrids[name])])
        said = f"takes back drafts of up to {most} tokens" if most else "takes back no drafts"
        assert f" llama.cpp {said}" in capsys.readouterr().out


def test_layers_for_further_tokens_are_left_out_and_info_says_so(
    hybrids: HybridFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["info", str(hybrids["qwen35-mtp"])])
    assert "\nMTP layers       1, which drafts" in capsys.readouterr().out
    for engine in ("llama", "onnx"):
        texts = []
        for name in ("qwen35", "qwen35-mtp"):
            with loaded(hybrids[name], "ngram", engine=engine) as model:
                assert not model.notes
                texts.append([ask(model, prompt, 0, 1.0, 60).token_ids for prompt in PROMPTS])
        assert texts[0] == texts[1]


# --- the state


@pytest.mark.parametrize("name", [*WITH_SNAPSHOTS, "falcon-h1", "mamba"])
@given(st.data())
@settings(max_examples=15)
def test_rows_are_those_of_a_fresh_text_wherever_it_went_back_to(
    hybrids: HybridFiles, opened: dict[str, LlamaPath], name: str, data: st.DataObject
) -> None:
    model, text, most = opened[name], list[int](), opened[name].capabilities.max_rows
    model.rollback(0)
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 20)))
    wanted: list[tuple[list[int], Logits]] = []
    saved: tuple[bytes, list[int]] | None = None
    for _ in range(data.draw(st.integers(3, 14))):
        step = data.draw(st.sampled_from(["decode", "decode", "decode", "prefill", "rollback", "save", "restore"]))
        if step == "prefill":
            ahead = rng.integers(3, N_VOCAB, int(rng.integers(1, 80))).tolist()
            model.prefill(ahead)
            text += ahead
        elif step == "decode":
            ahead = rng.integers(3, N_VOCAB, int(rng.integers(1, most + 1))).tolist()
            rows = model.decode(Tree.sequence(ahead)).copy()
            wanted += [(text + ahead[: n + 1], row) for n, row in enumerate(rows)]
            n_kept = int(rng.integers(1, len(ahead) + 1))
            model.keep(range(n_kept))
            text += ahead[:n_kept]
            # Rejected tokens are never a reason to go back further.
            assert model.n_past == len(text)
        elif step == "rollback":
            model.rollback(int(rng.integers(0, len(text) + 1)))
        elif step == "save":
            saved = model.save(), list(text)
        elif saved is not None:
            model.restore(saved[0])
            text = list(saved[1])
        text = text[: model.n_past]
        if len(text) > 250:
            break
    fresh = Fresh(model)
    for read, row in wanted:
        assert np.array_equal(fresh.after(read), row)


@pytest.mark.parametrize("name", WITH_SNAPSHOTS)
def test_each_row_but_the_first_can_be_taken_back_once_decoded(opened: dict[str, LlamaPath], name: str) -> None:
    model = opened[name]
    for n_rows in range(1, 7):
        for n_kept in range(1, n_rows + 1):
            model.rollback(0)
            model.prefill(list(range(100, 140)))
            model.decode(Tree.sequence(range(140, 140 + n_rows)))
            model.keep(range(n_kept))
            assert model.n_past == 40 + n_kept
            # Further back there is only the end of the prompt.
            model.rollback(max(40, 40 + n_kept - 1))
            assert model.n_past == (40 + n_kept - 1 if n_kept > 1 else 40)


def test_a_text_goes_back_to_where_its_prompt_ended_and_where_it_began(opened: dict[str, LlamaPath]) -> None:
    for model in opened.values():
        model.rollback(0)
        model.prefill(list(range(100, 150)))
        for token in range(10):
            model.decode(Tree.sequence([200 + token]))
            model.keep([0])
        model.prefill(list(range(150, 220)))
        for token in range(10):
            model.decode(Tree.sequence([220 + token]))
            model.keep([0])
        places = []
        for wanted in (140, 138, 130, 100, 60, 40):
            model.rollback(min(wanted, model.n_past))
            places.append(model.n_past)
        assert places == [140, 130, 130, 60, 60, 0]


def test_a_prompt_may_begin_where_an_earlier_one_has_ended(opened: dict[str, LlamaPath]) -> None:
    for model in opened.values():
        model.rollback(0)
        model.prefill(list(range(100, 150)))
        for token in range(10):
            model.decode(Tree.sequence([200 + token]))
            model.keep([0])
        model.rollback(55)
        assert model.n_past == 50
        # One that is read in several calls begins with the first of them.
        for start in range(150, 220, 35):
            model.prefill(list(range(start, start + 35)))
        model.decode(Tree.sequence([300]))
        model.keep([0])
        for wanted, place in ((120, 120), (119, 50), (49, 0)):
            model.rollback(wanted)
            assert model.n_past == place


def test_a_cancelled_reading_goes_on_after_the_last_whole_chunk(opened: dict[str, LlamaPath]) -> None:
    for model in opened.values():
        model.rollback(0)
        model.prefill(list(range(100, 164)))
        model.cancel()
        with pytest.raises(Cancelled):
            model.prefill(list(range(164, 264)))
        assert model.n_past == 64
        model.prefill(list(range(164, 200)))
        row = model.decode(Tree.sequence([300]))[0].copy()
        assert np.array_equal(Fresh(model).after([*range(100, 200), 300]), row)


# --- drafts


def recorded(path: Path, temperature: float, n_tokens: int = 600) -> list[list[int]]:
    """Prompts with what a model writes after them without drafts."""
    with loaded(path) as model:
        assert model.identity == "bitwise"
        replies = [ask(model, prompt, seed, temperature, n_tokens) for seed, prompt in enumerate(PROMPTS)]
        return [[*reply.prompt, *reply.token_ids] for reply in replies]


def ask(model: edge_spec.TextModel, prompt: str, seed: int, temperature: float, n_tokens: int = 600) -> Any:
    reply = model.generate(
        prompt, raw=True, seed=seed, temperature=temperature, max_tokens=n_tokens, logit_bias={END: float("-inf")}
    )
    reply.read()
    return reply


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", WITH_SNAPSHOTS)
def test_accepted_and_rejected_drafts_change_no_token(hybrids: HybridFiles, name: str, temperature: float) -> None:
    texts = recorded(hybrids[name], temperature)
    assert all(len(set(text)) > 50 for text in texts), "texts that repeat themselves try little"
    n_drafted = n_accepted = n_rounds = n_in_part = 0
    with loaded(hybrids[name], recorded_mode(texts, N_VOCAB, accuracy=0.7)) as model:
        assert model.mode == "recorded"
        assert not model.notes
        for seed, prompt in enumerate(PROMPTS):
            reply = ask(model, prompt, seed, temperature)
            assert [*reply.prompt, *reply.token_ids] == texts[seed]
            done = reply.statistics
            n_drafted, n_accepted = n_drafted + done.drafted, n_accepted + done.accepted
            n_rounds += done.rounds
            n_in_part += done.lengths[2] + done.lengths[3]
    assert 0.3 < n_accepted / n_drafted < 0.9
    assert n_in_part > 0.2 * n_rounds


def test_a_hybrid_drafts_for_a_hybrid(hybrids: HybridFiles) -> None:
    texts = recorded(hybrids["qwen35"], 0.0, 200)
    small = {"draft": hybrids["qwen35-draft"], "intermediate": hybrids["qwen35-intermediate"]}
    for mode in ("sequence", "hierarchy"):
        with loaded(hybrids["qwen35"], mode, **small) as model:
            assert not model.notes
            n_drafted = n_accepted = 0
            for seed, prompt in enumerate(PROMPTS):
                reply = ask(model, prompt, seed, 0.0, 200)
                assert [*reply.prompt, *reply.token_ids] == texts[seed]
                n_drafted += reply.statistics.drafted
                n_accepted += reply.statistics.accepted
            print(mode, n_drafted, n_accepted)
            assert 0 < n_accepted < n_drafted
