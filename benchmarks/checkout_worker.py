"""What the edge-spec of one environment does with a task, as JSON; started by ``compare_checkouts.py``.

    python checkout_worker.py TASK RESULT

TASK is a JSON file of tables, see ``checkout_tasks.py``: which models to open and what to ask of them. Only what users
of edge-spec see is used, so that versions with other modules inside can be compared.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
import zipfile
from collections.abc import Callable, Mapping
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import Any

from checkout_commands import Found, commands, plans, process_size, stable
from checkout_models import Conversations, attempt, each_model, facts, opened, written

import edge_spec

_LIBRARIES = ("edge-spec", "llama-cpp-python", "onnxruntime", "numpy", "gguf", "tokenizers", "jinja2", "click")


class Scarce:
    """A watch on memory that finds too little of it exactly when it is told to."""

    low_bytes = 1 << 20
    clock = staticmethod(time.monotonic)
    now = False

    def scarcity(self) -> Scarce | None:
        seen, self.now = self.now, False
        return self if seen else None

    def is_scarce(self, seen: object) -> bool:
        return True

    def has_room(self, seen: object, n_bytes: int) -> bool:
        return False


def replies(part: Mapping[str, Any], own: Path, others: Path) -> Found:
    """Lone replies; also those with a grammar."""
    for number, (name, setup, model) in enumerate(each_model(part)):
        yield f"{name}: model", facts(model)
        # Others in every mode, so that all of them come up.
        for case in part["cases"][number % setup["every"] :: setup["every"]]:
            asked = {key: value for key, value in case.items() if key != "name"}
            if "logit_bias" in asked:
                asked["logit_bias"] = {int(token): bias for token, bias in asked["logit_bias"].items()}
            counted = not name.endswith(" auto")
            yield f"{name}: {case['name']}", attempt(reply, model, asked, counted=counted)
        yield f"{name}: afterwards", facts(model)


def reply(model: edge_spec.TextModel, asked: Mapping[str, Any], *, counted: bool) -> dict[str, Any]:
    """A reply to ``generate``'s arguments."""
    return written(model.generate(**asked), counted=counted)


def tables(part: Mapping[str, Any], own: Path, others: Path) -> Found:
    """Models whose distributions are tables: rows, what is kept, and saved states."""
    for seed in range(part["n"]):
        table = edge_spec.random_table(13, order=2, seed=seed)
        near = edge_spec.random_table(13, order=2, seed=seed + 1, scale=0.5, like=table)
        for name, distributions in (("target", table), ("drafter", near)):
            model = edge_spec.TableModel(distributions, n_ctx=64)
            model.prefill([1, 2, 3, 4, 5])
            rows = model.decode(edge_spec.Tree((6, 7, 8, 9), (-1, 0, 0, 2))).tobytes()
            model.keep([0, 2, 3])
            model.shift(1, 3)
            state = model.save()
            model.rollback(2)
            model.restore(state)
            after = model.decode(edge_spec.Tree.sequence([3, 2, 1])).tobytes()
            yield f"{name} {seed}", [digest(each) for each in (rows, state, after)] + [model.n_past, model.profile.name]


def chats(part: Mapping[str, Any], own: Path, others: Path) -> Found:
    """Long conversations in a small context."""
    for name, _, model in each_model(part):
        steps = Conversations(model, counted=not name.endswith(" auto")).steps(part["script"])
        for number, (step, (arguments, _)) in enumerate(zip(steps, part["script"], strict=True)):
            yield f"{name}: {number} {' '.join(map(str, arguments[:2]))}", step
        yield f"{name}: afterwards", facts(model)


def saved(part: Mapping[str, Any], own: Path, others: Path) -> Found:
    """Conversations saved here, and gone on with: at once, from the file, and from the other side's file."""
    files = {}
    for name, setup, model in each_model(part):
        files[name] = setup["name"], f"{name.replace(' ', '-')}.chat"
        conversations, path = Conversations(model, counted=True), own / files[name][1]
        yield f"{name}: before", conversations.steps(part["before"])
        conversations.sessions["a"].save(path)
        yield f"{name}: file", archive(path)
        yield f"{name}: straight on", conversations.steps(part["after"])
    for name, setup, model in each_model(part):
        for source, (engine, file) in files.items():
            for whose, folder in (("own", own), ("old", others)) if engine == setup["name"] else ():
                script = [(["a", "load", str(folder / file)], {}), *part["after"]]
                yield f"{name}: {whose} file of {source}", Conversations(model, counted=True).steps(script)


def archive(path: Path) -> dict[str, Any]:
    """What stands in a saved conversation; of times only that they are there."""
    with zipfile.ZipFile(path) as file:
        entries = {name: digest(file.read(name)) for name in file.namelist() if not name.endswith(".json")}
        records = {name: json.loads(file.read(name)) for name in file.namelist() if name.endswith(".json")}
    for record in records.values():
        for message in record.get("messages", ()):
            message["statistics"] = stable(message.get("statistics"))
    return {"magic": path.read_bytes()[:4].hex(), "caches": entries, "records": records}


def profiles(part: Mapping[str, Any], own: Path, others: Path) -> Found:
    """Numerics profiles over a grid of settings, each with a short reply."""
    asked = {"prompt": part["prompt"], "seed": 3, "max_tokens": 12}

    def one(mode: str, load: Mapping[str, Any]) -> dict[str, Any]:
        with process_size(), opened(load, mode) as model:
            return facts(model) | reply(model, asked, counted=True)

    for settings in part["grid"]:
        load = {key: value for key, value in settings.items() if key != "mode"}
        yield " ".join(f"{key}={value}" for key, value in settings.items()), attempt(one, settings["mode"], load)


def scarcity(part: Mapping[str, Any], own: Path, others: Path) -> Found:
    """What is reduced or dropped, step by step, while an answer is written and memory is said to be scarce."""
    for setup in part["setups"]:
        watch = Scarce()
        with opened({**setup["load"], "watch": watch}, setup["modes"][0]) as model:
            session = model.chat("You are a friend.", seed=5, ignore_eos=True)
            session.send(part["prompt"], max_tokens=80).read()
            answer = session.send(part["prompt"], max_tokens=400)
            for number, _ in enumerate(answer):
                if number % 6 == 5:
                    time.sleep(1.05)  # between two steps memory gets a second to come back
                    watch.now = True
            yield f"{setup['name']} {setup['modes'][0]}", facts(model) | written(answer, counted=True)


def digest(raw: bytes) -> str:
    """The length of something long, and a hash of it."""
    return f"{len(raw)} bytes, {blake2b(raw, digest_size=12).hexdigest()}"


_SECTIONS: dict[str, Callable[[Mapping[str, Any], Path, Path], Found]] = {
    "replies": replies,
    "structured": replies,
    "tables": tables,
    "chat": chats,
    "saved": saved,
    "profiles": profiles,
    "scarcity": scarcity,
    "plans": plans,
    "commands": commands,
}


def main(task_file: str, result_file: str) -> None:
    """Do what a task asks for, section by section, and write down what came of it."""
    task = json.loads(Path(task_file).read_text("utf-8"))
    libraries = {name: version(name) for name in _LIBRARIES} | {"python": sys.version.split()[0]}
    result: dict[str, Any] = {"place": str(Path(edge_spec.__file__).parent), "libraries": libraries, "sections": {}}
    for name in task["sections"]:
        cases: dict[str, Any] = {}
        start = time.perf_counter()
        try:
            for case, found in _SECTIONS[name](task["parts"][name], Path(task["own"]), Path(task["others"])):
                assert case not in cases, f"two results of {case}"
                cases[case] = found
        except Exception:
            cases["crash"] = traceback.format_exc()
        result["sections"][name] = {"seconds": time.perf_counter() - start, "cases": cases}
    Path(result_file).write_text(json.dumps(result), "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
