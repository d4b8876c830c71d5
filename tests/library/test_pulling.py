"""Laws of fetching: what stands under its name is whole, interrupted downloads continue, nothing is fetched twice."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_hub import FAULTS, FakeHub, fake_hub
from gguf_files import write_gguf

from edge_spec.errors import DiskFull, DownloadError, EdgeSpecError, ModelNotFound
from edge_spec.library.hub import Hub
from edge_spec.library.pulling import find, preview, pull, remove
from edge_spec.library.wanted import wanted
from edge_spec.loading import plan
from edge_spec.models import inspect, resolve_family

pytest.importorskip("huggingface_hub")
ENTRY = """
[tiny]
target = { repo = "org/big-GGUF", file = "*-Q4_0.gguf" }
draft = { repo = "org/small-GGUF", file = "*.gguf" }
read = "this test"
tried = true
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("models")
    return {
        "target": write_gguf(folder / "target.gguf").read_bytes(),
        "draft": write_gguf(folder / "draft.gguf", n_layers=1).read_bytes(),
    }


@pytest.fixture
def hub(models: dict[str, bytes]) -> Iterator[FakeHub]:
    with fake_hub() as found:
        found.repositories = {
            "org/big-GGUF": {
                "README.md": b"#",
                "big-Q8_0.gguf": b"x",
                "big-Q4_0.gguf": models["target"],
                "mmproj-big-Q4_0.gguf": b"y",
                "sub/big-Q6_K-00001-of-00002.gguf": models["draft"],
                "sub/big-Q6_K-00002-of-00002.gguf": models["target"],
            },
            "org/small-GGUF": {"small-Q4_0.gguf": models["draft"]},
        }
        yield found


@pytest.fixture
def catalogue(tmp_path: Path) -> Path:
    path = tmp_path / "catalogue.toml"
    path.write_text(ENTRY)
    return path


def client(hub: FakeHub) -> Hub:
    return Hub(endpoint=hub.address, pause=lambda seconds: None)


def under_their_names(folder: Path) -> list[Path]:
    """Everything but what is kept of interrupted downloads."""
    return [path for path in folder.rglob("*") if path.is_file() and ".partial" not in path.parts]


@pytest.mark.parametrize(
    ("name", "called", "files"),
    [
        ("org/big-GGUF", "big-Q4_0", ["big-Q4_0.gguf"]),
        ("org/big-GGUF:q8_0", "big-Q8_0", ["big-Q8_0.gguf"]),
        ("org/big-GGUF:big-Q8_0.gguf", "big-Q8_0", ["big-Q8_0.gguf"]),
        ("https://hub.org/org/big-GGUF", "big-Q4_0", ["big-Q4_0.gguf"]),
        ("https://hub.org/org/big-GGUF/resolve/main/big-Q8_0.gguf?download=true", "big-Q8_0", ["big-Q8_0.gguf"]),
        ("org/big-GGUF:Q6_K", "big-Q6_K", ["big-Q6_K-00001-of-00002.gguf", "big-Q6_K-00002-of-00002.gguf"]),
    ],
)
def test_a_name_means_files(name: str, called: str, files: list[str], hub: FakeHub) -> None:
    found = find(wanted(name), client(hub))
    assert found.name == called
    assert [file.name for file in found.files["target"]] == files


@pytest.mark.parametrize("name", ["nonsense", "org/big-GGUF:Q3_K", "org/none", "org/big GGUF", "https://hub.org/a.zip"])
def test_other_names_are_refused(name: str, hub: FakeHub) -> None:
    with pytest.raises(ModelNotFound) as caught:
        find(wanted(name), client(hub))
    assert caught.value.hint


def test_a_family_is_looked_at_fetched_run_and_removed(
    hub: FakeHub, catalogue: Path, models: dict[str, bytes], tmp_path: Path
) -> None:
    what = find(wanted("tiny", catalogue), client(hub))
    previews = preview(what, client(hub), tmp_path / "previews")
    assert sum(last + 1 - first for _, first, last in hub.asked) <= 2 << 20
    seen = {role: inspect(path) for role, path in previews.items()}
    asked = {"n_ctx": 256, "memory": "1GiB", "cache_dir": None, "held_bytes": 60 << 20}
    planned = plan(previews["target"], draft=previews["draft"], **asked)
    done: list[tuple[int, int]] = []
    place = pull(what, client(hub), tmp_path / "models", {}, lambda *step: done.append(step))
    assert done[-1] == (what.n_bytes, what.n_bytes) and done == sorted(done)
    family = resolve_family(place)
    assert family.draft is not None
    assert family.target.read_bytes() == models["target"]
    assert family.draft.read_bytes() == models["draft"]
    for role, path in (("target", family.target), ("draft", family.draft)):
        whole = inspect(path)
        assert (seen[role].vocabulary, seen[role].tensors) == (whole.vocabulary, whole.tensors)
    same = plan(place, **asked)
    assert (planned.chosen.needed_bytes, planned.chosen.choices) == (same.chosen.needed_bytes, same.chosen.choices)
    assert not list((tmp_path / "models" / ".partial").iterdir())
    hub.asked.clear()
    pull(what, client(hub), tmp_path / "models", {})
    assert hub.asked == []
    freed = remove("tiny", tmp_path / "models")
    assert freed >= len(models["target"]) + len(models["draft"])
    assert not place.exists()
    for name in ("tiny", "..", ".partial", "", "/"):
        with pytest.raises(ModelNotFound):
            remove(name, tmp_path / "models")


def test_only_what_is_certainly_a_model_is_removed(tmp_path: Path) -> None:
    letters = tmp_path / "Documents" / "letter.txt"
    letters.parent.mkdir()
    letters.write_text("dear all")
    with pytest.raises(ModelNotFound, match=r"has no family\.json"):
        remove("Documents", tmp_path)
    assert letters.read_text() == "dear all"


def test_files_of_one_name_in_two_repositories_do_not_replace_each_other(
    hub: FakeHub, catalogue: Path, models: dict[str, bytes], tmp_path: Path
) -> None:
    hub.repositories["org/small-GGUF"] = {"big-Q4_0.gguf": models["draft"]}
    family = resolve_family(pull(find(wanted("tiny", catalogue), client(hub)), client(hub), tmp_path / "models", {}))
    assert family.draft is not None
    assert (family.target.name, family.draft.name) == ("big-Q4_0.gguf", "draft-big-Q4_0.gguf")
    assert family.target.read_bytes() == models["target"]
    assert family.draft.read_bytes() == models["draft"]


def test_only_numbered_parts_of_a_model_are_parts(hub: FakeHub, models: dict[str, bytes]) -> None:
    hub.repositories["org/merged-GGUF"] = {"best-of-both-Q4_0.gguf": models["target"]}
    assert find(wanted("org/merged-GGUF"), client(hub)).name == "best-of-both-Q4_0"


def test_an_interrupted_download_continues_where_it_ended(
    hub: FakeHub, models: dict[str, bytes], tmp_path: Path
) -> None:
    what = find(wanted("org/big-GGUF:Q4_0"), client(hub))
    faults = iter(["", "cut", *["broken"] * 20])
    hub.fault = lambda: next(faults)
    with pytest.raises(DownloadError, match="continues where it ended"):
        pull(what, client(hub), tmp_path, {})
    assert under_their_names(tmp_path) == []
    (part,) = (tmp_path / ".partial").iterdir()
    held = part.stat().st_size
    assert 0 < held < len(models["target"])
    hub.fault = lambda: ""
    hub.asked.clear()
    pull(what, client(hub), tmp_path, {})
    assert hub.asked == [("big-Q4_0.gguf", held, len(models["target"]) - 1)]
    assert (tmp_path / "big-Q4_0" / "big-Q4_0.gguf").read_bytes() == models["target"]


@pytest.mark.parametrize("fault", FAULTS)
def test_nothing_stands_under_its_name_unless_it_is_whole(
    fault: str, hub: FakeHub, models: dict[str, bytes], tmp_path: Path
) -> None:
    hub_client = client(hub)
    what = find(wanted("org/big-GGUF:Q4_0"), hub_client)
    hub.fault = lambda: fault
    try:
        pull(what, hub_client, tmp_path, {})
    except EdgeSpecError as error:
        assert error.hint
        assert not [path for path in under_their_names(tmp_path) if path.suffix == ".gguf"]
    else:
        # These do no harm, or are made up for by further attempts.
        assert fault in ("ignores ranges", "too long", "cut", "too short", "no JSON")
    hub.fault = lambda: ""
    pull(what, hub_client, tmp_path, {})
    assert (tmp_path / "big-Q4_0" / "big-Q4_0.gguf").read_bytes() == models["target"]


def many_faults(n: int, hub: FakeHub, catalogue: Path, models: dict[str, bytes], folder: Path) -> None:
    """Fetch over and over while one request in three fails in some way; whole files only, after every attempt."""
    chance, n_injected = random.Random(n), 0

    def fault() -> str:
        nonlocal n_injected
        chosen = chance.choice(FAULTS) if chance.random() < 0.4 else ""
        n_injected += bool(chosen)
        return chosen

    hub.fault = fault
    n_whole = 0
    while n_injected < n:
        try:
            place = pull(find(wanted("tiny", catalogue), client(hub)), client(hub), folder, {})
            assert resolve_family(place).draft is not None
            n_whole += 1
            remove("tiny", folder)
        except EdgeSpecError as error:
            assert error.hint
        contents = {path.name: path.read_bytes() for path in under_their_names(folder) if path.suffix == ".gguf"}
        assert contents.items() <= {"big-Q4_0.gguf": models["target"], "small-Q4_0.gguf": models["draft"]}.items()
    assert n_whole


def test_many_faults_leave_only_whole_files(
    hub: FakeHub, catalogue: Path, models: dict[str, bytes], tmp_path: Path
) -> None:
    many_faults(25, hub, catalogue, models, tmp_path / "models")


@pytest.mark.slow
def test_two_hundred_faults_leave_only_whole_files(
    hub: FakeHub, catalogue: Path, models: dict[str, bytes], tmp_path: Path
) -> None:
    many_faults(200, hub, catalogue, models, tmp_path / "models")


def test_what_another_program_has_is_linked_to(hub: FakeHub, models: dict[str, bytes], tmp_path: Path) -> None:
    theirs = tmp_path / ".lmstudio" / "models" / "org" / "repo" / "other name.gguf"
    theirs.parent.mkdir(parents=True)
    theirs.write_bytes(models["target"])
    theirs.with_name("same size.gguf").write_bytes(bytes(len(models["target"])))
    what = find(wanted("org/big-GGUF:Q4_0"), client(hub))
    place = pull(what, client(hub), tmp_path / "models", {"HOME": str(tmp_path)})
    assert hub.asked == []
    assert (place / "big-Q4_0.gguf").resolve() == theirs.resolve()
    assert inspect(resolve_family(place).target).n_vocab == 384
    remove("big-Q4_0", tmp_path / "models")
    assert theirs.read_bytes() == models["target"]


def test_a_full_disk_is_told_before_anything_is_fetched(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    what = find(wanted("org/big-GGUF:Q4_0"), client(hub))
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(DiskFull, match=r"big-Q4_0\.gguf"):
        pull(what, client(hub), tmp_path, {})
    assert hub.asked == []


def test_a_token_goes_to_the_hub_and_a_gated_model_says_what_to_do(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    find(wanted("org/big-GGUF"), client(hub))
    assert "Bearer hf_secret" in hub.tokens
    hub.gated.add("org/big-GGUF")
    with pytest.raises(ModelNotFound, match="licence"):
        find(wanted("org/big-GGUF"), client(hub))


def test_a_hub_that_cannot_be_reached_is_told() -> None:
    with fake_hub() as hub:
        address = hub.address
    with pytest.raises(DownloadError, match="cannot be reached"):
        Hub(endpoint=address, pause=lambda seconds: None).files("org/big-GGUF")
