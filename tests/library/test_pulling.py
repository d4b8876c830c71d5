"""Laws of fetching: what stands under its name is whole, interrupted downloads continue, nothing is fetched twice."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from fake_hub import FAULTS, FakeHub, client, fail, under_their_names

from edge_spec.errors import DownloadError, EdgeSpecError, ModelNotFound
from edge_spec.library.finding import find
from edge_spec.library.partial import interrupted
from edge_spec.library.previews import preview
from edge_spec.library.pulling import pull, remove
from edge_spec.library.wanted import wanted
from edge_spec.loading import plan
from edge_spec.models import inspect, resolve_family

pytestmark = pytest.mark.long

pytest.importorskip("huggingface_hub")


@pytest.mark.parametrize(
    ("name", "called", "files"),
    [
        ("org/big-GGUF", "big-Q4_0", ["big-Q4_0.gguf"]),
        ("org/one-bit-GGUF", "one-bit-Q1_0", ["one-bit-Q1_0.gguf"]),
        ("org/big-GGUF:q8_0", "big-Q8_0", ["big-Q8_0.gguf"]),
        ("org/big-GGUF:big-Q8_0.gguf", "big-Q8_0", ["big-Q8_0.gguf"]),
        ("https://huggingface.co/org/big-GGUF", "big-Q4_0", ["big-Q4_0.gguf"]),
        ("https://hf.co/org/big-GGUF/resolve/main/big-Q8_0.gguf?download=true", "big-Q8_0", ["big-Q8_0.gguf"]),
        ("HUB/org/big-GGUF/blob/main/big-Q8_0.gguf", "big-Q8_0", ["big-Q8_0.gguf"]),
        ("org/big-GGUF:Q6_K", "big-Q6_K", ["big-Q6_K-00001-of-00002.gguf", "big-Q6_K-00002-of-00002.gguf"]),
    ],
)
def test_a_name_means_files(name: str, called: str, files: list[str], hub: FakeHub) -> None:
    found = find(wanted(name.replace("HUB", hub.address), endpoint=hub.address), client(hub))
    assert found.name == called
    assert [file.name for file in found.files["target"]] == files


@pytest.mark.parametrize(
    "name",
    [
        "nonsense",
        "org/big-GGUF:Q3_K",
        "org/none",
        "org/big GGUF",
        "https://hub.org/a.zip",
        "https://hub.org/org/big-GGUF",
        "https://huggingface.co/models",
    ],
)
def test_other_names_are_refused(name: str, hub: FakeHub) -> None:
    with pytest.raises(ModelNotFound) as caught:
        find(wanted(name), client(hub))
    assert caught.value.hint


def test_a_family_is_looked_at_planned_fetched_and_removed(
    hub: FakeHub, catalogue: Path, models: dict[str, bytes], tmp_path: Path
) -> None:
    what = find(wanted("tiny", catalogue), client(hub))
    previews = preview(what, client(hub), tmp_path / "previews")
    assert sum(last + 1 - first for _, first, last in hub.asked) <= 2 << 20
    seen = {role: inspect(path) for role, path in previews.items()}
    asked = {"n_ctx": 256, "memory": "1GiB", "cache_dir": None, "held_bytes": 60 << 20}
    planned = plan(previews["target"], draft=previews["draft"], **asked)
    told: list[tuple[str, int, int]] = []
    place = pull(what, client(hub), tmp_path / "models", {}, lambda *step: told.append(step))
    done = [n for stage, n, total in told if stage == "fetching" and total == what.n_bytes]
    assert told[-1] == ("fetching", what.n_bytes, what.n_bytes) and done == sorted(done)
    # Hashing a large file takes minutes on a card: it is shown as well.
    assert {stage for stage, n, total in told if n == total} >= {"checking big-Q4_0.gguf", "checking small-Q4_0.gguf"}
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
    fail(hub, "", "cut", *["broken"] * 20)
    with pytest.raises(DownloadError, match="continues where it ended"):
        pull(what, client(hub), tmp_path, {})
    assert under_their_names(tmp_path) == []
    ((name, part),) = interrupted(tmp_path)
    assert name == "big-Q4_0.gguf"
    held = (part / "part").stat().st_size
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


def assert_only_whole_files_after(
    n: int, hub: FakeHub, catalogue: Path, models: dict[str, bytes], folder: Path
) -> None:
    """Fetch over and over while two requests in five fail in some way; whole files only, after every attempt."""
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
    assert_only_whole_files_after(25, hub, catalogue, models, tmp_path / "models")


@pytest.mark.slow
def test_two_hundred_faults_leave_only_whole_files(
    hub: FakeHub, catalogue: Path, models: dict[str, bytes], tmp_path: Path
) -> None:
    assert_only_whole_files_after(200, hub, catalogue, models, tmp_path / "models")
