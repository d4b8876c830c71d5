"""Laws of servers: they are asked again as they wish, in each other's place, and without tokens that are not theirs."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from fake_hub import COMMIT, FakeHub, client, fail, fake_hub

from edge_spec.errors import DownloadError, ModelNotFound
from edge_spec.library.finding import find
from edge_spec.library.hub import Hub
from edge_spec.library.previews import preview
from edge_spec.library.pulling import pull
from edge_spec.library.wanted import wanted
from edge_spec.models import inspect, resolve_family

constants = pytest.importorskip("huggingface_hub.constants")


def test_a_busy_hub_is_asked_again_after_the_time_that_it_asks_for(hub: FakeHub) -> None:
    pauses: list[float] = []
    patient = Hub(endpoint=hub.address, pause=pauses.append)
    fail(hub, "busy", "broken")
    assert patient.files("org/small-GGUF")
    assert pauses == [3.0, 1.0]
    file = next(each for each in patient.files("org/small-GGUF") if each.name == "small-Q4_0.gguf")
    pauses.clear()
    fail(hub, "busy")
    assert patient.read(file, 0, 4) == b"GGUF"
    assert pauses == [3.0]
    hub.fault = lambda: "busy"
    with pytest.raises(DownloadError, match="429"):
        patient.files("org/small-GGUF")


def test_a_file_at_any_address_is_fetched_from_there_and_resumed(
    hub: FakeHub, models: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.plain = {"/files/tiny-Q4_0.gguf": models["target"]}
    hub.versions = {"/files/tiny-Q4_0.gguf": '"one"'}
    address = f"{hub.address}/files/tiny-Q4_0.gguf"
    what = find(wanted(address), client(hub))
    assert (what.name, what.n_bytes) == ("tiny-Q4_0", len(models["target"]))
    assert inspect(preview(what, client(hub), tmp_path / "previews")["target"]).n_vocab == 384
    fail(hub, "cut", *["broken"] * 20)
    with pytest.raises(DownloadError, match="continues where it ended"):
        pull(what, client(hub), tmp_path / "models", {})
    hub.fault = lambda: ""
    hub.asked.clear()
    place = pull(find(wanted(address), client(hub)), client(hub), tmp_path / "models", {})
    assert all(first > 0 for _, first, last in hub.asked if last > 0)
    assert (place / "tiny-Q4_0.gguf").read_bytes() == models["target"]
    # The hub's token is nobody else's business.
    assert set(hub.tokens) == {""}


def test_a_file_that_changes_while_it_is_fetched_is_not_put_together_from_two(
    hub: FakeHub, models: dict[str, bytes], tmp_path: Path
) -> None:
    path = "/files/tiny-Q4_0.gguf"
    hub.plain, hub.versions = {path: models["target"]}, {path: '"one"'}
    what = find(wanted(f"{hub.address}{path}"), client(hub))
    fail(hub, "cut", *["broken"] * 20)
    with pytest.raises(DownloadError):
        pull(what, client(hub), tmp_path, {})
    hub.fault = lambda: ""
    hub.plain, hub.versions = {path: models["draft"]}, {path: '"two"'}
    with pytest.raises(DownloadError, match="has changed"):
        pull(what, client(hub), tmp_path, {})
    place = pull(find(wanted(f"{hub.address}{path}"), client(hub)), client(hub), tmp_path, {})
    assert (place / "tiny-Q4_0.gguf").read_bytes() == models["draft"]


def test_a_model_in_parts_at_an_address_is_fetched_whole(hub: FakeHub, tmp_path: Path) -> None:
    hub.plain = {f"/m-0000{n}-of-00002.gguf": bytes([n] * 8) for n in (1, 2)}
    what = find(wanted(f"{hub.address}/m-00001-of-00002.gguf"), client(hub))
    assert what.name == "m"
    assert [file.name for file in what.files["target"]] == ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"]
    with pytest.raises(ModelNotFound, match="does not have that file"):
        find(wanted(f"{hub.address}/none.gguf"), client(hub))


def test_an_address_cannot_ask_for_thousands_of_files(hub: FakeHub) -> None:
    with pytest.raises(ModelNotFound, match="would be one of 99,999 files, and a model has at most 500"):
        find(wanted(f"{hub.address}/m-00001-of-99999.gguf"), client(hub))
    assert hub.requests == 0
    hub.plain = {f"/m-{n:05}-of-00500.gguf": b"x" for n in range(1, 500)}
    with pytest.raises(ModelNotFound, match="does not have that file"):
        find(wanted(f"{hub.address}/m-00001-of-00500.gguf"), client(hub))
    assert hub.requests == 1


def test_the_token_stays_with_the_hub_where_it_redirects(
    hub: FakeHub, models: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with fake_hub() as other:
        other.repositories, hub.elsewhere = hub.repositories, other.address
        pull(find(wanted("org/small-GGUF"), client(hub)), client(hub), tmp_path, {})
        assert "Bearer hf_secret" in hub.tokens
        assert other.asked and set(other.tokens) == {""}


def test_offline_a_model_of_the_hubs_cache_is_used_where_it_lies(
    hub: FakeHub, models: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "hub" / "models--org--small-GGUF"
    blob = cache / "blobs" / hashlib.sha256(models["draft"]).hexdigest()
    link = cache / "snapshots" / COMMIT / "small-Q4_0.gguf"
    for path in (blob, link, cache / "refs" / "main"):
        path.parent.mkdir(parents=True)
    blob.write_bytes(models["draft"])
    link.symlink_to(blob)
    (cache / "refs" / "main").write_text(COMMIT)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    what = find(wanted("org/small-GGUF"), client(hub))
    assert inspect(preview(what, client(hub), tmp_path / "previews")["target"]).n_vocab == 384
    place = pull(what, client(hub), tmp_path / "models", {})
    assert resolve_family(place).target.read_bytes() == models["draft"]
    with pytest.raises(DownloadError, match="HF_HUB_OFFLINE is set"):
        find(wanted("org/big-GGUF"), client(hub))
    assert hub.asked == [] and hub.tokens == []


def test_a_token_goes_to_the_hub_and_a_gated_model_says_what_to_do(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    find(wanted("org/big-GGUF"), client(hub))
    assert "Bearer hf_secret" in hub.tokens
    hub.gated.add("org/big-GGUF")
    with pytest.raises(ModelNotFound, match="license"):
        find(wanted("org/big-GGUF"), client(hub))


def test_a_hub_that_cannot_be_reached_is_told() -> None:
    with fake_hub() as hub:
        address = hub.address
    with pytest.raises(DownloadError, match="cannot be reached"):
        Hub(endpoint=address, pause=lambda seconds: None).files("org/big-GGUF")
