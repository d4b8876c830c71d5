"""Laws of the cache of transcriptions: each is made once, whole or not at all, and removed when nobody uses it."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gguf_files import MATRICES, write_gguf

from edge_spec import load
from edge_spec.engines.onnx.kernels import available
from edge_spec.engines.onnx.opener import open_onnx
from edge_spec.engines.onnx.runner import Runner
from edge_spec.engines.onnx.transcription import cache_folder
from edge_spec.engines.onnx.transcription.cache import check_transcription, read_transcription, transcribe
from edge_spec.engines.settings import ModelSettings
from edge_spec.errors import BackendError, DiskFull, ModelFileError, UnsupportedModel
from edge_spec.models import inspect

pytestmark = pytest.mark.long

needs_kernels = pytest.mark.skipif(available() is not None, reason="the kernels were not built")


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "model.gguf")


def test_a_transcription_is_made_once(gguf: Path, tmp_path: Path) -> None:
    made: list[int] = []
    progress: list[tuple[int, int]] = []
    for _ in range(2):
        source = transcribe(
            inspect(gguf),
            tmp_path / "cache",
            on_start=lambda damaged: made.append(1),
            progress=lambda done, total: progress.append((done, total)),
        )
    assert made == [1]
    assert progress == sorted(progress)
    assert progress[-1][0] <= progress[-1][1]
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [source.folder.name]


def test_another_model_of_the_same_name_is_made_again(gguf: Path, tmp_path: Path) -> None:
    first = transcribe(inspect(gguf), tmp_path / "cache")
    second = transcribe(inspect(write_gguf(gguf, seed=1)), tmp_path / "cache")
    assert first.folder != second.folder


def test_a_change_that_the_fingerprint_misses_is_noticed(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", kinds=dict.fromkeys(MATRICES, "F32"))
    first = transcribe(inspect(path), tmp_path / "cache")
    weights = (first.folder / "weights.bin").read_bytes()
    data = bytearray(path.read_bytes())
    data[-5] ^= 1  # samples are taken from the middle of a tensor
    path.write_bytes(data)
    second = transcribe(inspect(path), tmp_path / "cache")
    assert second.folder == first.folder
    assert (second.folder / "weights.bin").read_bytes() != weights


def test_a_copy_of_a_model_shares_its_transcription(gguf: Path, tmp_path: Path) -> None:
    made: list[int] = []
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(gguf.read_bytes())
    for path in (gguf, copy, gguf, copy):
        transcribe(inspect(path), tmp_path / "cache", on_start=lambda damaged: made.append(1))
    assert made == [1]


def _delete(path: Path) -> None:
    path.unlink()


def _shorten(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def _scribble(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 255
    path.write_bytes(data)


@pytest.mark.parametrize("harm", [_delete, _shorten, _scribble])
@pytest.mark.parametrize("name", ["weights.bin", "graph", "facts.json", "source.json"])
def test_a_damaged_cache_is_rebuilt(gguf: Path, tmp_path: Path, name: str, harm: Callable[[Path], None]) -> None:
    source = transcribe(inspect(gguf), tmp_path / "cache")
    name = source.graph(f16=False).name if name == "graph" else name
    whole, files = (source.folder / name).read_bytes(), sorted(source.folder.iterdir())
    harm(source.folder / name)
    assert (read_transcription(source.folder) is None) == (name != "source.json")
    again = transcribe(inspect(gguf), tmp_path / "cache")
    assert again.folder == source.folder
    assert (again.folder / name).read_bytes() == whole
    assert sorted(again.folder.iterdir()) == files
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [source.folder.name]


def _damage_between_samples(weights: Path) -> None:
    """Change a byte and nothing that programs can see of the file but for the time that the system sets itself."""
    found = weights.stat()
    with weights.open("r+b") as file:
        file.seek(found.st_size // 3)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    os.utime(weights, ns=(found.st_atime_ns, found.st_mtime_ns))


@pytest.mark.skipif(sys.platform == "win32", reason="the system tells no time of a change there")
@needs_kernels
def test_weights_of_the_right_size_and_time_are_made_again_and_told_once(gguf: Path, tmp_path: Path) -> None:
    texts, told = [], []
    for _ in range(3):
        sentences: list[str] = []
        with load(
            gguf, engine="onnx", n_threads=1, n_ctx=64, cache_dir=tmp_path, speculation="off", on_wait=sentences.append
        ) as model:
            texts.append(model.generate("Hello", max_tokens=8, seed=1, raw=True, ignore_eos=True).read())
        told.append([each for each in sentences if "damaged" in each])
        [weights] = (tmp_path / "onnx").glob("*/weights.bin")
        whole = weights.read_bytes()
        if len(told) == 1:
            _damage_between_samples(weights)
            assert weights.read_bytes() != whole
    assert texts[0] == texts[1] == texts[2]
    assert [len(each) for each in told] == [0, 1, 0]
    assert "model.gguf" in told[1][0]


def test_weights_are_read_again_only_after_something_has_changed_their_file(
    gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = transcribe(inspect(gguf), tmp_path / "cache").folder
    computed: list[int] = []
    checksum = zlib.crc32
    monkeypatch.setattr(zlib, "crc32", lambda data, value=0: computed.append(len(data)) or checksum(data, value))
    moved = tmp_path / "elsewhere"
    shutil.copytree(folder, moved)
    for place, n_read in ((folder, 0), (moved, 1), (moved, 0)):
        computed.clear()
        assert read_transcription(place) is not None
        assert sum(computed) == n_read * (folder / "weights.bin").stat().st_size


def test_a_cache_of_another_version_is_rebuilt(gguf: Path, tmp_path: Path) -> None:
    source = transcribe(inspect(gguf), tmp_path / "cache")
    facts = json.loads((source.folder / "facts.json").read_text())
    (source.folder / "facts.json").write_text(json.dumps(facts | {"version": facts["version"] + 1}))
    transcribe(inspect(gguf), tmp_path / "cache")
    assert json.loads((source.folder / "facts.json").read_text()) == facts


@needs_kernels
@pytest.mark.parametrize("n_bytes", [None, 0, 5000, -1])
def test_missing_and_short_weights_are_a_clear_error(gguf: Path, tmp_path: Path, n_bytes: int | None) -> None:
    source = transcribe(inspect(gguf), tmp_path / "cache")
    weights = source.folder / "weights.bin"
    if n_bytes is None:
        weights.unlink()
    else:
        os.truncate(weights, n_bytes if n_bytes >= 0 else weights.stat().st_size + n_bytes)
    with pytest.raises(BackendError, match="ONNX Runtime"):
        open_onnx(source, ModelSettings(n_ctx=8, n_threads=1), file="x", cache_dir=None)


def test_a_full_disk_is_noticed_before_anything_is_written(
    gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(cache_folder.shutil, "disk_usage", lambda path: usage._replace(free=1 << 20))
    with pytest.raises(DiskFull) as caught:
        transcribe(inspect(gguf), tmp_path / "cache")
    assert caught.value.needed_bytes > caught.value.available_bytes == 1 << 20
    assert not list((tmp_path / "cache").iterdir())


@pytest.mark.parametrize(("n_files", "error"), [(0, ModelFileError), (9, DiskFull)])
def test_a_disk_without_room_for_another_file_is_told(
    gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_files: int, error: type[Exception]
) -> None:
    file, cache = inspect(gguf), tmp_path / "disk" / "cache"

    def no_room(*given: Any, **more: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "mkdir", no_room)
    room = dict.fromkeys(("f_bavail", "f_bfree", "f_blocks", "f_frsize", "f_files"), 100)
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(**room, f_favail=n_files))
    with pytest.raises(error, match="cache"):
        transcribe(file, cache)


@pytest.mark.skipif(sys.platform == "win32", reason="names are Unicode there")
def test_a_cache_folder_that_onnx_runtime_cannot_name_is_left_out(gguf: Path, tmp_path: Path) -> None:
    cache = tmp_path / os.fsdecode(b"caf\xe9")
    for use in (transcribe, check_transcription):
        with pytest.raises(ModelFileError, match="not UTF-8"):
            use(inspect(gguf), cache)
    assert not cache.exists()
    graph = cache / "model.onnx"
    with pytest.raises(UnsupportedModel, match="not UTF-8"):
        Runner(graph, n_threads=1, spin=False, hint="rename it", external=True)


@pytest.fixture
def closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in one of somebody else, into which nobody may look."""
    stat, folder = Path.stat, tmp_path / "theirs" / "cache"

    def refused(path: Path, **how: Any) -> os.stat_result:
        if path.is_relative_to(folder):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return stat(path, **how)

    folder.parent.mkdir()
    monkeypatch.setattr(Path, "stat", refused)
    return folder


def test_a_cache_folder_into_which_nobody_may_look_is_left_out(gguf: Path, closed: Path) -> None:
    assert cache_folder.existing(closed) == closed.parent
    with pytest.raises(ModelFileError, match=r"the cache folder .*cache cannot be written"):
        transcribe(inspect(gguf), closed)
    with load(gguf, engine="llama", n_threads=1, cache_dir=closed, n_ctx=64, speculation="off") as model:
        assert model.generate("Hello", max_tokens=2, seed=1, raw=True, ignore_eos=True).read() is not None


@pytest.mark.parametrize(("code", "error"), [(errno.ENOSPC, DiskFull), (errno.EIO, ModelFileError)])
def test_a_failure_while_writing_leaves_nothing(
    gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, error: type[Exception]
) -> None:
    def fail(done: int, total: int) -> None:
        if done > 300_000:
            raise OSError(code, os.strerror(code))

    with pytest.raises(error):
        transcribe(inspect(gguf), tmp_path / "cache", progress=fail)
    assert not list((tmp_path / "cache").iterdir())


def _aged(path: Path, days: float) -> Path:
    os.utime(path, (time.time() - days * 86400,) * 2)
    return path


def test_what_a_killed_process_left_is_removed(gguf: Path, tmp_path: Path) -> None:
    script = (
        "import os, sys; from pathlib import Path; from edge_spec.models import inspect;"
        "from edge_spec.engines.onnx.transcription.cache import transcribe;"
        "transcribe(inspect(sys.argv[1]), Path(sys.argv[2]), progress=lambda *done: os._exit(9))"
    )
    cache = tmp_path / "cache"
    assert subprocess.run([sys.executable, "-c", script, str(gguf), str(cache)]).returncode == 9
    [left] = cache.iterdir()
    assert left.name.startswith(".part-")
    # It can be seen and cleared.
    assert [folder for _, folder in cache_folder.transcriptions_in(cache)] == [left]
    for name, days in ((".part-elsewhere-old", 1.1), (".part-elsewhere-new", 0.9)):
        (cache / name).mkdir()
        _aged(cache / name, days)
    made = transcribe(inspect(gguf), cache).folder
    assert {path.name for path in cache.iterdir()} == {made.name, ".part-elsewhere-new"}


def test_what_nobody_has_used_for_long_goes_when_another_is_written(gguf: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first, second = (transcribe(inspect(write_gguf(gguf, seed=seed)), cache).folder for seed in (1, 2))
    older = first.with_name(first.name.rpartition("-")[0] + "-0")
    shutil.copytree(second, older)
    for folder, days in ((first, 61), (second, 59), (older, 2)):
        _aged(folder / "source.json", days)
    third = transcribe(inspect(write_gguf(gguf, seed=3)), cache).folder
    assert set(cache.iterdir()) == {second, third}
    # To be used is to stay.
    _aged(second / "source.json", 61)
    transcribe(inspect(write_gguf(gguf, seed=2)), cache)
    fourth = transcribe(inspect(write_gguf(gguf, seed=4)), cache).folder
    assert set(cache.iterdir()) == {second, third, fourth}


def test_what_is_not_ours_stays_in_the_cache(gguf: Path, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    _aged(tmp_path / "notes", 400)
    transcribe(inspect(gguf), tmp_path)
    assert (tmp_path / "notes").exists()


def _transcribe(gguf: Path, folder: Path, barrier: Any, results: Any) -> None:
    barrier.wait()
    results.put(str(transcribe(inspect(gguf), folder).folder))


def test_several_processes_at_once_agree(gguf: Path, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(3), context.Queue()
    folder = tmp_path / "cache"
    processes = [context.Process(target=_transcribe, args=(gguf, folder, barrier, results)) for _ in range(3)]
    for process in processes:
        process.start()
    found = {results.get(timeout=60) for _ in processes}
    for process in processes:
        process.join(60)
    assert len(found) == 1
    assert [str(path) for path in folder.iterdir()] == list(found)
