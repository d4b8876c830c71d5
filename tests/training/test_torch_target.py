"""Laws of a target in PyTorch, and of a head that is taught with it."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from gguf_files import write_gguf

torch = pytest.importorskip("torch")

import edge_spec  # noqa: E402
from edge_spec.cli import main  # noqa: E402
from edge_spec.engines.onnx.kernels import available  # noqa: E402
from edge_spec.engines.registry import engine  # noqa: E402
from edge_spec.errors import ModelFileError, UnsupportedModel  # noqa: E402
from edge_spec.generation.prompts import PromptBuilder  # noqa: E402
from edge_spec.models import inspect, resolve_family  # noqa: E402
from edge_spec.tokens.kept_tokens import KeptTokens  # noqa: E402
from edge_spec.training.clock import Clock  # noqa: E402
from edge_spec.training.drafter.export import write_drafter  # noqa: E402
from edge_spec.training.drafter.heads import build_head, head_shape, target_layers  # noqa: E402
from edge_spec.training.drafter.opened import opened_with_hidden_rows  # noqa: E402
from edge_spec.training.drafter.pack import read_pack, users_frame  # noqa: E402
from edge_spec.training.drafter.read_objective import ReadLoss  # noqa: E402
from edge_spec.training.drafter.rows import packed_whole  # noqa: E402
from edge_spec.training.drafter.teaching import Written, read_written, until_loop, write_answers  # noqa: E402
from edge_spec.training.drafter.torch_target import TorchTarget  # noqa: E402
from edge_spec.training.head import summed_sparse_divergence, summed_whole_divergence  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

FILE = inspect(resolve_family("demo").target)
PROMPTS = [list(range(300 + n, 310 + 4 * n)) for n in range(5)]
ASKED = ["Tell me a story about a dog.", "What is a lantern?", "Hello, how are you today?", "Tell me a story."]
NONE = np.array([], np.int64)
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def target() -> TorchTarget:
    return TorchTarget(FILE, device="cpu", kind=torch.float32)


def greedy(target: TorchTarget, prompts: list[list[int]], new: int, ends: np.ndarray = NONE) -> list[list[int]]:
    return target.write(prompts, np.zeros(len(prompts), np.float32), ends, new=new, seed=1)


def test_an_answer_does_not_depend_on_its_company(target: TorchTarget) -> None:
    """Prompts of other lengths beside it, answers that end sooner: what is written is what is written alone."""
    together = greedy(target, PROMPTS, 40)
    assert together == [greedy(target, [prompt], 40)[0] for prompt in PROMPTS]
    # Four of five end early, each in another place, so that their rows are dropped while the fifth goes on.
    ends = np.array([answer[place] for answer, place in zip(together[:4], (3, 9, 14, 20), strict=True)])
    found = greedy(target, PROMPTS, 40, ends)
    for whole, ended in zip(together, found, strict=True):
        first = next((place for place, token in enumerate(whole) if token in ends), len(whole) - 1)
        assert ended == whole[: first + 1]
    assert len({len(answer) for answer in found}) > 2


def test_what_is_read_is_what_was_written(target: TorchTarget) -> None:
    """Several texts in one row see nothing of each other, and expect the tokens that were written greedily."""
    answers = greedy(target, PROMPTS, 20)
    texts = [[*prompt, *answer] for prompt, answer in zip(PROMPTS, answers, strict=True)]
    row = torch.tensor([token for text in texts for token in text])[None]
    numbers = torch.tensor([number for number, text in enumerate(texts) for _ in text])[None]
    hidden, last = target.read(row, numbers)
    place = 0
    for text, prompt in zip(texts, PROMPTS, strict=True):
        alone, of_last = target.read(torch.tensor([text]), torch.zeros(1, len(text), dtype=torch.int64))
        here = slice(place, place + len(text))
        scale = float(alone.abs().max())
        assert torch.allclose(hidden[0, here], alone[0], atol=1e-4 * scale)
        assert torch.allclose(last[0, here], of_last[0], atol=1e-3)
        expected = (of_last[0] @ target.output.T).argmax(-1)
        assert expected[len(prompt) - 1 : -1].tolist() == text[len(prompt) :]
        place += len(text)


@pytest.mark.skipif(available() is not None, reason="the kernels were not built")
def test_it_reads_what_the_engine_reads(target: TorchTarget, probe_cache: Path) -> None:
    """The same rows for a head, but for the rounding of the engine's products."""
    text = [*PROMPTS[4], *greedy(target, PROMPTS[4:], 40)[0]]
    hidden, _ = target.read(torch.tensor([text]), torch.zeros(1, len(text), dtype=torch.int64))
    opened = opened_with_hidden_rows(FILE, engine("onnx"), 96, target_layers(FILE), cache_dir=probe_cache)
    with opened as (model, _, rows):
        model.prefill(text)
        read = rows[0 : len(text)].astype(np.float32)
    assert read.shape == hidden[0].shape
    for ours, theirs in zip(np.split(hidden[0].numpy(), 3, axis=1), np.split(read, 3, axis=1), strict=True):
        assert np.square(ours - theirs).sum() < 0.02 * np.square(theirs).sum()


def test_draws_are_from_the_models_distribution(target: TorchTarget) -> None:
    """4,000 first tokens after one prompt, at two temperatures, by a chi-squared test of the likeliest 20."""
    prompt, n = PROMPTS[1], 4000
    _, last = target.read(torch.tensor([prompt]), torch.zeros(1, len(prompt), dtype=torch.int64))
    logits = (last[0, -1] @ target.output.T).double()
    for temperature in (0.8, 1.0):
        drawn = target.write([prompt] * n, np.full(n, temperature, np.float32), NONE, new=1, seed=3)
        chances = (logits / temperature).softmax(-1)
        top = chances.topk(20).indices
        counts = torch.bincount(torch.tensor(drawn).flatten(), minlength=len(chances)).double()
        expected = torch.cat((chances[top], 1 - chances[top].sum(None, keepdim=True))) * n
        found = torch.cat((counts[top], n - counts[top].sum(None, keepdim=True)))
        # 45.3 is exceeded once in a thousand times with 20 degrees of freedom.
        assert float(((found - expected).square() / expected.clamp(min=1)).sum()) < 45.3


def test_a_text_is_learned_from_until_it_loops() -> None:
    random = np.random.default_rng(1)
    rows = random.integers(0, 1000, (4, 200))
    rows[1, 50:] = np.resize(rows[1, 50:57], 150)  # seven tokens again and again
    rows[2, 20:] = 5
    rows[3, 190:] = 5  # too short to be called a loop
    found = until_loop(torch.from_numpy(rows)).tolist()
    assert found[0] == found[3] == 200
    assert 50 + 7 + 24 <= found[1] <= 50 + 2 * 7 + 24
    assert 20 + 24 <= found[2] <= 20 + 2 + 24


def test_the_divergence_from_whole_distributions_is_that_from_all_their_columns() -> None:
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(7, 16, generator=generator, requires_grad=True)
    matrix = torch.randn(33, 16, generator=generator)
    chances = torch.randn(7, 33, generator=generator).softmax(-1)
    columns = torch.arange(33).expand(7, -1)
    gradients = []
    for loss in (
        summed_whole_divergence(hidden, matrix, chances),
        summed_sparse_divergence(hidden, matrix, columns, chances),
    ):
        gradients.append((float(loss.detach()), torch.autograd.grad(loss, hidden)[0]))
    (one, of_one), (other, of_other) = gradients
    assert one == pytest.approx(other, rel=1e-5)
    assert torch.allclose(of_one, of_other, atol=1e-5)


def written_by(target: TorchTarget) -> Written:
    answers = greedy(target, PROMPTS, 20)
    texts = [[*prompt, *answer] for prompt, answer in zip(PROMPTS, answers, strict=True)]
    return Written(
        np.array([token for text in texts for token in text]),
        np.array([len(text) for text in texts]),
        np.array([len(prompt) for prompt in PROMPTS]),
    )


def test_a_head_learns_what_the_target_expects_behind_what_it_has_read(target: TorchTarget) -> None:
    """Of every token of an answer, from the rows of the token before it; nothing of a prompt, nothing behind an end."""
    written = written_by(target)
    some = written.most_written(FILE.n_vocab, 200)
    assert written.answers(KeptTokens(some, FILE.n_vocab)).coverage == 1.0
    kept = KeptTokens(np.arange(FILE.n_vocab), FILE.n_vocab)
    answers = written.answers(kept)
    objective = ReadLoss(
        answers=answers,
        texts=np.arange(len(PROMPTS)),
        row=128,
        short_row=128,
        short_share=0.0,
        seed=1,
        whole=True,
        steps=2,
        target=target,
        ids=written.tokens,
    )
    rows = torch.from_numpy(packed_whole(answers.begins, np.arange(len(PROMPTS)), 128))
    features, expected = objective.reading(rows)
    learned = objective.expected(rows.numpy()) >= 0
    assert learned.sum() == 20 * len(PROMPTS)
    # What is expected greedily is the next token of the text.
    places = rows.numpy()[learned]
    assert expected.likeliest.tolist() == kept.columns[written.tokens[places + 1]].tolist()
    for number, begin in enumerate(answers.begins[:-1]):
        text = written.tokens[begin : answers.begins[number + 1]]
        hidden, _ = target.read(torch.from_numpy(text)[None], torch.zeros(1, len(text), dtype=torch.int64))
        row, column = (int(each[0]) for each in np.nonzero(rows.numpy() == begin))
        assert not features[row, column].any()
        found = features[row, column + 1 : column + len(text)]
        assert torch.allclose(found, hidden[0, :-1], atol=1e-4 * float(hidden.abs().max()))


def test_other_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="architecture"):
        TorchTarget(inspect(head_file(tmp_path)), device="cpu", kind=torch.float32)
    turned = write_gguf(tmp_path / "a.gguf", tied=True, rope_factors=True, n_layers=4)
    with pytest.raises(UnsupportedModel, match=r"rope_freqs\.weight, which is not computed"):
        TorchTarget(inspect(turned), device="cpu", kind=torch.float32)
    scaled = write_gguf(tmp_path / "b.gguf", tied=True, n_layers=4, extra={"rope.scaling.factor": 2.0})
    with pytest.raises(UnsupportedModel, match=r"llama\.rope\.scaling\.factor = 2\.0, which is not computed"):
        TorchTarget(inspect(scaled), device="cpu", kind=torch.float32)
    untied = write_gguf(tmp_path / "c.gguf", n_layers=4)
    with pytest.raises(UnsupportedModel, match=r"output\.weight, which is not computed"):
        TorchTarget(inspect(untied), device="cpu", kind=torch.float32)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prompts of the demo."""
    folder = tmp_path_factory.mktemp("packed")
    (folder / "a.jsonl").write_text("".join(json.dumps({"turns": [each]}) + "\n" for each in ASKED), "utf-8")
    with pytest.raises(SystemExit) as ended:
        main(["drafter", "pack", str(FILE.path), "--texts", str(folder), "--out", str(folder / "prompts.npz")])
    assert ended.value.code in (0, None)
    return folder / "prompts.npz"


def test_a_pack_is_whole_and_of_the_model(packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = packed.read_bytes()
    assert len(read_pack(packed, FILE).prompts) == len(ASKED)
    for damaged in (b"", b"no archive", whole[: len(whole) // 2], whole[:-1]):
        (tmp_path / "prompts.npz").write_bytes(damaged)
        with pytest.raises(ModelFileError, match="drafter pack"):
            read_pack(tmp_path / "prompts.npz", FILE)
    refused = 0
    for place in range(whole.index(b"PK\x01\x02"), len(whole)):
        (tmp_path / "prompts.npz").write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        try:
            read_pack(tmp_path / "prompts.npz", FILE)
        except ModelFileError:
            refused += 1
    assert refused > 100  # many bytes of an archive's directory are not looked at
    with pytest.raises(ModelFileError, match="another model"):
        read_pack(packed, inspect(write_gguf(tmp_path / "other.gguf")))
    with pytest.raises(SystemExit) as ended:
        texts = ["--texts", str(packed.parent), "--prompt-tokens", "2"]
        main(["drafter", "pack", str(FILE.path), *texts, "--out", str(tmp_path / "none.npz")])
    assert ended.value.code == 1
    assert "none of 4 prompts has 2 to 2 tokens" in capsys.readouterr().err
    assert not (tmp_path / "none.npz").exists()


def test_words_of_a_user_are_asked_as_a_prompt_is(tmp_path: Path) -> None:
    """A question of the target's own between what comes before and behind it, also where texts begin with a token."""
    raw = bytearray(FILE.path.read_bytes())
    key = b"tokenizer.ggml.add_bos_token"
    for begins in (False, True):
        raw[raw.index(key) + len(key) + 4] = begins  # behind the type of the value
        (tmp_path / "model.gguf").write_bytes(raw)
        file = inspect(tmp_path / "model.gguf")
        with closing(engine("llama").opener(cache_dir=None)) as opener:
            builder = PromptBuilder(opener.tokenizer(file), file.chat_template, file.n_vocab)
            before, after = users_frame(builder)
            for asked in ASKED:
                whole = builder.tokens_of([{"role": "user", "content": asked}])
                assert [*before, *builder.tokenize(asked, add_special=False), *after] == whole


def test_an_interrupted_run_goes_on_where_it_ended(target: TorchTarget, packed: Path, tmp_path: Path) -> None:
    pack = read_pack(packed, FILE)
    how = {"n_tokens": 900, "new": 24, "seed": 1, "memory_bytes": 10_000_000, "say": lambda _: None}
    begun = write_answers(target, pack, clock=Clock(0.0), **how)
    assert 0 < begun.n_answered < 900
    begun.save(tmp_path / "writing.npz", FILE.n_vocab)
    begun = read_written(tmp_path / "writing.npz")
    whole = write_answers(target, pack, clock=Clock(), begun=begun, **how)
    assert whole.n_answered >= 900
    assert whole.tokens[: len(begun.tokens)].tolist() == begun.tokens.tolist()
    texts = [tuple(part.tolist()) for part in np.split(whole.tokens, np.cumsum(whole.lengths)[:-1])]
    # What was drawn before is not drawn again.
    n = len(begun.lengths)
    assert len(set(texts[:n]) & set(texts[n:])) <= n // 4
    (tmp_path / "writing.npz").write_bytes((tmp_path / "writing.npz").read_bytes()[:100])
    with pytest.raises(ModelFileError, match="holds no answers"):
        read_written(tmp_path / "writing.npz")


def head_file(folder: Path) -> Path:
    """A head that has learned nothing."""
    torch.manual_seed(1)
    kept = np.arange(383, dtype=np.int64)
    head = build_head(FILE, kept)
    arrays = {name: weight.detach().half().numpy() for name, weight in head.named_weights().items()}
    write_drafter(folder / "head.gguf", head_shape(FILE, 384), arrays, kept, FILE)
    return folder / "head.gguf"


@pytest.mark.parametrize("continued", [True, False])
@pytest.mark.skipif(available() is not None, reason="the kernels were not built")
def test_a_head_is_taught_on_a_machine_that_has_only_a_checkout(continued: bool, packed: Path, tmp_path: Path) -> None:
    """Prompts are packed here and answered there; the head that comes back drafts, and changes no token."""
    out = tmp_path / "out"
    begun = ["--head", str(head_file(tmp_path))] if continued else ["--vocabulary", "1024"]
    command = [sys.executable, "training/drafter", str(FILE.path), *begun]
    command += ["--pack", str(packed), "--out", str(out), "--device", "cpu", "--tokens", "600", "--memory-gb", "0.01"]
    command += ["--answer-tokens", "24", "--row", "64", "--step-tokens", "256", "--passes", "3", "--steps-ahead", "2"]
    # Not installed: the checkout is found from the file that is run.
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    written = read_written(out / "written.npz")
    assert written.n_answered >= 600
    log = [json.loads(line) for line in (out / "training" / "log.jsonl").read_text("utf-8").splitlines()]
    # One step leaves 5.7 and 4.7.
    assert log[-1]["valid_loss"] < (5.2 if continued else 4.0)
    # The same command has nothing left to do; another one is refused.
    assert subprocess.run(command, cwd=ROOT, capture_output=True, timeout=600, check=False).returncode == 0
    other = [*command, "--steps-ahead", "1"]
    done = subprocess.run(other, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 1 and "another steps_ahead" in done.stderr
    with (
        edge_spec.load(FILE.path, speculation="off", engine="onnx") as plain,
        edge_spec.load(FILE.path, draft=out / "drafter.gguf", speculation="sequence", engine="onnx") as drafting,
    ):
        for prompt in ASKED:
            ours = drafting.generate(prompt, max_tokens=32, temperature=0.8, seed=1)
            assert ours.read() == plain.generate(prompt, max_tokens=32, temperature=0.8, seed=1).read()
            assert ours.statistics.drafted > 0
