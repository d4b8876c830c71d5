"""What the edge-spec of one environment does with a task, as JSON; started by ``compare_checkouts.py``.

    python -P checkout_worker.py TASK RESULT

TASK is a JSON file of tables: which models to open and what to ask of them. Only what users of edge-spec see is used,
so that versions with other modules inside can be compared; what two versions spell differently stands in ``RENAMED``.
What is refused is a result as well: the kind of the error.
"""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys
import time
import traceback
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from hashlib import blake2b
from importlib.metadata import entry_points, version
from inspect import signature
from pathlib import Path
from typing import Any

import edge_spec

RENAMED = {
    "middle": "intermediate",
    "middle_engine": "intermediate_engine",
    "given_up": "degradations",
    "held_bytes": "session_cache_bytes",
}
"""Arguments of ``load`` and attributes of a model: the older name, and the newer one."""

_LIBRARIES = ("edge-spec", "llama-cpp-python", "onnxruntime", "numpy", "gguf", "tokenizers", "jinja2", "click")
_COMMAND = "next(iter(entry_points(group='console_scripts', name='edge-spec'))).load()"
_PROCESS_BYTES = 96 << 20

Found = Iterator[tuple[str, Any]]


class Repeat:
    """A drafter as users write them: guesses that the last token comes again."""

    name = "repeat"

    def begin(self, prompt: Sequence[int], sampler: Any) -> None:
        self.text = list(prompt)

    def draft(self, limit: int) -> edge_spec.Tree:
        return edge_spec.Tree.sequence([self.text[-1]] * limit)

    def accept(self, tokens: Sequence[int]) -> None:
        self.text.extend(tokens)

    def rollback(self, length: int) -> None:
        del self.text[length:]

    def close(self) -> None:
        """Holds nothing."""


class Scarce:
    """A watch on memory that finds too little of it exactly when it is told to."""

    low_bytes = 1 << 20
    now = False

    def scarcity(self) -> Scarce | None:
        seen, self.now = self.now, False
        return self if seen else None

    def is_scarce(self, seen: object) -> bool:
        return True

    def has_room(self, seen: object, n_bytes: int) -> bool:
        return False


class Talk:
    """Conversations by name on one model, step by step."""

    def __init__(self, model: edge_spec.TextModel, *, counted: bool) -> None:
        self.model = model
        self.counted = counted
        self.told: list[str] = []
        self.sessions: dict[str, Any] = {}

    def step(self, who: str, action: str, *arguments: Any, **options: Any) -> Any:
        """One call of a conversation, or ``begin``, ``cancel`` (a question whose answer is stopped) and ``load``."""
        before = len(self.told)
        if action == "begin":
            self.sessions[who] = self.model.chat(*arguments, on_notice=self.told.append, **options)
        elif action == "load":
            self.sessions[who] = edge_spec.ChatSession.load(self.model, *arguments, on_notice=self.told.append)
        session, done = self.sessions[who], None
        if action == "cancel":
            text, n_pieces = arguments
            reply = session.send(text, **options)
            for _ in range(n_pieces):
                next(reply, None)
            reply.cancel()
            done = written(reply, counted=self.counted)
        elif action not in ("begin", "load"):
            done = getattr(session, action)(*arguments, **options)
            if hasattr(done, "token_ids"):
                done = written(done, counted=self.counted)
            elif done is not None:
                done = [message.content for message in done]
        return {
            "done": done,
            "told": len(self.told) - before,
            "tokens": session.n_tokens,
            "seen": session.n_seen,
            "messages": [[each.role, each.content, each.finish_reason, each.attempt] for each in session.messages],
            "laid_aside_bytes": attribute(self.model, "held_bytes"),
        }


def attribute(owner: object, name: str) -> Any:
    """An attribute under its older or its newer name."""
    return getattr(owner, name if hasattr(owner, name) else RENAMED[name])


def opened(arguments: Mapping[str, Any], mode: str) -> edge_spec.TextModel:
    """``edge_spec.load`` with arguments under their older names."""
    known = signature(edge_spec.load).parameters
    named = {name if name in known else RENAMED.get(name, name): value for name, value in arguments.items()}
    own = edge_spec.Mode(name="repeat", build=lambda models: Repeat(), limit=2)
    return edge_spec.load(speculation=own if mode == "repeat" else mode, **named)


def each_model(part: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], edge_spec.TextModel]]:
    """Every model of a part of the task in each of its modes: name, settings, and the model while it is open."""
    for setup in part["setups"]:
        for mode in setup["modes"]:
            with opened(setup["load"], mode) as model:
                yield f"{setup['name']} {mode}", setup, model


def attempt(work: Callable[[], Any]) -> Any:
    """What comes of it, or the kind of the error."""
    try:
        return work()
    except Exception as error:
        return {"error": type(error).__name__}


def facts(model: edge_spec.TextModel) -> dict[str, Any]:
    """What a model says of itself, and how much of it was given up for want of memory."""
    profile = model.profile
    found = {name: getattr(model, name) for name in ("mode", "lossless", "identity", "n_ctx", "n_vocab")}
    found["profile"] = {"name": profile.name, "engine": profile.engine, **dict(profile.facts)}
    return found | {"notes": len(model.notes), "given_up": len(attribute(model, "given_up"))}


def written(reply: edge_spec.Generation, *, counted: bool) -> dict[str, Any]:
    """A reply, read to its end; with counts of drafts where these do not follow the clock."""
    n_pieces = sum(1 for _ in reply)
    found = {name: getattr(reply, name) for name in ("text", "token_ids", "finish_reason")}
    found |= {"prompt_tokens": len(reply.prompt), "notices": len(reply.notices), "seed": reply.settings.seed}
    if counted:
        found["pieces"] = n_pieces
        found |= {name: getattr(reply.statistics, name) for name in ("rounds", "drafted", "accepted", "tokens")}
    return found


def replies(part: Mapping[str, Any], own: Path, others: Path) -> Found:
    """Lone replies; also those with a grammar."""
    for name, setup, model in each_model(part):
        yield f"{name}: model", facts(model)
        for case in part["cases"][:: setup["every"]]:
            asked = {key: value for key, value in case.items() if key != "name"}
            if "logit_bias" in asked:
                asked["logit_bias"] = {int(token): bias for token, bias in asked["logit_bias"].items()}
            counted = not name.endswith(" auto")
            yield f"{name}: {case['name']}", attempt(lambda: written(model.generate(**asked), counted=counted))
        yield f"{name}: afterwards", facts(model)


def tables(part: Mapping[str, Any], own: Path, others: Path) -> Found:
    """Models whose laws are tables: rows, what is kept, and saved states."""
    for seed in range(part["n"]):
        table = edge_spec.random_table(13, order=2, seed=seed)
        near = edge_spec.random_table(13, order=2, seed=seed + 1, scale=0.5, like=table)
        for name, law in (("target", table), ("drafter", near)):
            model = edge_spec.TableModel(law, n_ctx=64)
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
    """Long talks in a small context."""
    for name, _, model in each_model(part):
        talk = Talk(model, counted=not name.endswith(" auto"))
        for number, (arguments, options) in enumerate(part["script"]):
            step = attempt(lambda: talk.step(*arguments, **options))
            yield f"{name}: {number} {' '.join(map(str, arguments[:2]))}", step
        yield f"{name}: afterwards", facts(model)


def saved(part: Mapping[str, Any], own: Path, others: Path) -> Found:
    """Conversations saved here, and gone on with: at once, from the file, and from the other side's file."""
    names = []
    for name, _, model in each_model(part):
        names.append(name)
        talk, path = Talk(model, counted=True), own / f"{name.replace(' ', '-')}.chat"
        steps = [attempt(lambda: talk.step(*arguments, **options)) for arguments, options in part["before"]]
        talk.sessions["a"].save(path)
        yield f"{name}: before", steps
        yield f"{name}: file", archive(path)
        yield f"{name}: straight on", [attempt(lambda: talk.step(*args, **named)) for args, named in part["after"]]
    for name, _, model in each_model(part):
        for source in (other for other in names if other.split()[0] == name.split()[0]):
            for whose, folder in (("own", own), ("old", others)):
                talk = Talk(model, counted=True)
                steps = [([*"a", "load", str(folder / f"{source.replace(' ', '-')}.chat")], {}), *part["after"]]
                went = [attempt(lambda: talk.step(*arguments, **options)) for arguments, options in steps]
                yield f"{name}: {whose} file of {source}", went


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
    for load in part["grid"]:

        def one(load: Mapping[str, Any] = load) -> dict[str, Any]:
            with opened({key: value for key, value in load.items() if key != "mode"}, load["mode"]) as model:
                asked = model.generate(part["prompt"], seed=3, max_tokens=12)
                return facts(model) | written(asked, counted=load["mode"] != "auto")

        yield " ".join(f"{key}={value}" for key, value in load.items()), attempt(one)


def scarcity(part: Mapping[str, Any], own: Path, others: Path) -> Found:
    """What is given up, step by step, while an answer is written and memory is said to be scarce."""
    for setup in part["setups"]:
        watch = Scarce()
        with opened({**setup["load"], "watch": watch}, setup["modes"][0]) as model:
            session = model.chat("You are a friend.", seed=5, ignore_eos=True)
            session.send(part["prompt"], max_tokens=80).read()
            reply = session.send(part["prompt"], max_tokens=400)
            for number, _ in enumerate(reply):
                if number % 6 == 5:
                    time.sleep(1.05)  # between two steps memory gets a second to come back
                    watch.now = True
            yield f"{setup['name']} {setup['modes'][0]}", facts(model) | written(reply, counted=True)


def plans(part: Mapping[str, Any], own: Path, others: Path) -> Found:
    """Plans from plenty of memory down to the least, each time with a byte less than the last one needs."""
    command = eval(_COMMAND, {"entry_points": entry_points})
    for name, arguments, most in part["chains"]:
        chain: list[Any] = []
        budget_bytes, code = 1 << 36, None
        with process_size(_PROCESS_BYTES):
            while len(chain) < most:
                printed = io.StringIO()
                with redirect_stdout(printed), redirect_stderr(io.StringIO()):
                    try:
                        code = command(["plan", *arguments, "--memory", str(budget_bytes), "--json"])
                    except SystemExit as end:
                        code = end.code
                if code:
                    break
                found = json.loads(printed.getvalue())
                budget_bytes = found["chosen"]["needed_bytes"] - 1
                chain.append(plan_of(found))
        yield name, {"chain": chain, "code": code}


@contextmanager
def process_size(n_bytes: int) -> Iterator[None]:
    """This process seems to be of that size (Linux): its own changes from call to call, and would move plans."""
    lines = {"Rss": n_bytes, "Private_Clean": 0, "Private_Dirty": n_bytes, "Anonymous": n_bytes}
    text = "".join(f"{name}: {size >> 10} kB\n" for name, size in lines.items())
    really = io.open

    def instead(file: Any, *arguments: Any, **options: Any) -> Any:
        told = str(file) == "/proc/self/smaps_rollup"
        return io.StringIO(text) if told else really(file, *arguments, **options)

    setattr(io, "open", instead)  # noqa: B010
    try:
        yield
    finally:
        setattr(io, "open", really)  # noqa: B010


def plan_of(found: dict[str, Any]) -> dict[str, Any]:
    """A plan without wording; what follows the size of the process stands under ``bytes``."""
    chosen = found["chosen"]
    kept = {name: chosen[name] for name in ("choices", "tables", "lines")}
    sizes = {name: size for name, size in chosen.items() if name.endswith("_bytes")}
    return kept | {
        "keys": shape(found),
        "engine": found["engine"],
        "profile": found["profile"],
        "runners_up": [other["choices"] for other in found["runners_up"]],
        "bytes": {**sizes, "thresholds": found["thresholds"]},
    }


def commands(part: Mapping[str, Any], own: Path, others: Path) -> Found:
    """The command in processes of its own: exit codes and what it prints."""
    start = f"import sys; from importlib.metadata import entry_points; sys.exit({_COMMAND}())"
    shutil.copy(others / part["session"], own / "session.chat")
    for name, how, arguments, stdin in part["calls"]:
        done = subprocess.run(
            [sys.executable, "-P", "-c", start, *arguments], input=stdin.encode(), capture_output=True, cwd=own
        )
        said, out = done.stderr.decode("utf-8", "replace"), done.stdout.decode("utf-8", "replace")
        shown = attempt(lambda: _SHOWN[how](out)) if done.returncode == 0 else out
        yield name, {"code": done.returncode, "error": "error:" in said, "notes": said.count(": note:"), "out": shown}


def stable(value: Any) -> Any:
    """A JSON value without its fractions, most of which are times."""
    if isinstance(value, dict):
        return {key: stable(each) for key, each in value.items()}
    if isinstance(value, list):
        return [stable(each) for each in value]
    return "number" if isinstance(value, float) else value


def shape(value: Any) -> Any:
    """Names and types of a JSON value."""
    if isinstance(value, dict):
        return {key: shape(each) for key, each in value.items()}
    return [shape(each) for each in value[:1]] if isinstance(value, list) else type(value).__name__


def digest(raw: bytes) -> str:
    return f"{len(raw)} bytes, {blake2b(raw, digest_size=12).hexdigest()}"


_SHOWN: dict[str, Callable[[str], Any]] = {
    "text": lambda out: out,
    "values": lambda out: [stable(json.loads(line)) for line in out.splitlines()],
    "shape": lambda out: [shape(json.loads(line)) for line in out.splitlines()],
    "plan": lambda out: plan_of(json.loads(out)),
    "options": lambda out: sorted(set(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", out))),
}

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
    task = json.loads(Path(task_file).read_text("utf-8"))
    libraries = {name: version(name) for name in _LIBRARIES} | {"python": sys.version.split()[0]}
    result: dict[str, Any] = {"place": str(Path(edge_spec.__file__).parent), "libraries": libraries, "sections": {}}
    for name in task["sections"]:
        cases: dict[str, Any] = {}
        start = time.perf_counter()
        try:
            cases |= _SECTIONS[name](task["parts"][name], Path(task["own"]), Path(task["others"]))
        except Exception:
            cases["crash"] = traceback.format_exc()
        result["sections"][name] = {"seconds": time.perf_counter() - start, "cases": cases}
    Path(result_file).write_text(json.dumps(result), "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
