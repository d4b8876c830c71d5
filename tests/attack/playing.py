"""Playing a story: what is written with drafts and beside others is compared with plain decoding of each text alone."""

from __future__ import annotations

import gc
import random
import threading
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from hunted_models import Hunted
from random_choices import RandomChoices, RandomLimits

import edge_spec
from edge_spec import Drafter, Mode, TextModel, Tree
from edge_spec.chat import ChatSession
from edge_spec.errors import EdgeSpecError
from edge_spec.generation.reply import Reply
from edge_spec.speculation.drafters.hierarchy import HierarchyDrafter
from edge_spec.speculation.drafters.leaf import LeafDrafter
from edge_spec.speculation.drafters.model import ModelDrafter
from edge_spec.speculation.drafters.ngram import NgramDrafter
from edge_spec.speculation.modes import DraftModels
from edge_spec.speculation.tree import EMPTY

__all__ = ["Played", "play"]

Ask = Mapping[str, Any]


@dataclass
class Played:
    """What came of a story.

    Attributes:
        counts: comparisons, by what was compared.
        finds: each difference, a line.
    """

    counts: Counter[str] = field(default_factory=Counter)
    finds: list[str] = field(default_factory=list)


class Planted(Exception):
    """What a reader raises."""


@dataclass
class Outcome:
    """What somebody sees of a text.

    Attributes:
        notices: what its reader was told; they are not compared.
        identity: what the reply says of itself; not compared either.
    """

    tokens: list[int]
    text: str
    reason: str | None
    error: str = ""
    events: list[Any] = field(default_factory=list)
    notices: Sequence[str] = ()
    identity: str = ""

    @classmethod
    def of(cls, reply: Reply, error: BaseException | None = None, events: Sequence[Any] = ()) -> Outcome:
        error = error or reply.error
        # Text that was held back has an event without a token where its reader had taken the others.
        told = [(event.id, event.logprob, dict(event.top)) for event in events if event.id is not None]
        raised = type(error).__name__ if error else ""
        said = tuple(reply.notices)
        return cls(reply.token_ids, reply.content, reply.finish_reason, raised, told, said, reply.identity)

    @classmethod
    def refused(cls, error: Exception) -> Outcome:
        return cls([], "", "error", type(error).__name__)

    def difference(self, found: Outcome) -> str:
        """Return in what another one differs; one that was cancelled, or whose reader raised, is a beginning."""
        if found.reason == "cancelled" or found.error == Planted.__name__:
            n = len(found.tokens)
            # Half a character at its end is shown as one that cannot be read.
            is_same = found.tokens == self.tokens[:n] and self.text.startswith(found.text.rstrip("\ufffd"))
            first = max(0, n - 5)
            told = f"tokens {found.tokens[first:]} from {first} on in place of {self.tokens[first:n]}"
            return "" if is_same else f"{told}, {found.text[-20:]!r} of {self.text!r}"
        for name in ("error", "tokens", "text", "reason", "events"):
            a, b = getattr(self, name), getattr(found, name)
            if a != b and name in ("tokens", "events"):
                at = next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
                return f"{name} from {at} on: {b[at : at + 3]} in place of {a[at : at + 3]} ({len(b)}, {len(a)})"
            if a != b:
                return f"{name} {b!r} in place of {a!r}"[:200]
        return ""


class Seer(Drafter):
    """Knows what was written before, and guesses as wrongly as chance wants it.

    Args:
        known: texts.
    """

    name = "seer"

    def __init__(self, known: Sequence[Sequence[int]], seed: int, *, trees: bool) -> None:
        self._known, self._trees, self._random = known, trees, random.Random(seed)

    def draft(self, limit: int) -> Tree:
        chance, ahead = self._random, self._ahead(limit + 2)
        if chance.random() < 0.1:
            return EMPTY
        accuracy = chance.choice((0.5, 0.8, 0.95, 1.0))
        tokens: list[int] = []
        parents: list[int] = []
        above = -1
        for token in ahead[: chance.randint(0, limit + 2)]:
            level = [token if chance.random() < accuracy else self._other()]
            if self._trees:
                level += [self._other() for _ in range(chance.choice((0, 0, 1, 2)))]
                chance.shuffle(level)
            below = above
            for each in level:
                tokens.append(each)
                parents.append(above)
                if each == token:
                    below = len(tokens) - 1
            # Sometimes the right ones stand below a wrong one.
            above = below if below != above and chance.random() < 0.95 else len(tokens) - 1
        return Tree(tuple(tokens), tuple(parents)) if tokens else EMPTY

    def _other(self) -> int:
        return self._random.choice((0, 1, 2, self._random.randrange(384), 1 << 20, *self.text.tokens[-2:]))

    def _ahead(self, n: int) -> Sequence[int]:
        end = self.text.tokens[-4:]
        for text in reversed(self._known):
            for at in range(len(text) - 1, 0, -1):
                if text[at - 1] == end[-1] and list(text[max(0, at - 4) : at]) == end:
                    return text[at : at + n]
        return ()


def _mode(story: Mapping[str, Any], hunted: Hunted, known: Sequence[Sequence[int]]) -> str | Mode:
    name, chance = story["mode"], random.Random(story["seed"])
    if name == "hierarchy" and hunted.intermediate is None:
        return "sequence"
    seeds = count(story["seed"])
    trees = name == "seer trees" or (name == "random" and chance.random() < 0.5)

    def seer() -> Drafter:
        return Seer(known, next(seeds), trees=trees)

    def build(models: DraftModels) -> Drafter:
        draft = models.draft(trees=True)
        path = ModelDrafter(draft, width=3 if draft.capabilities.takes_trees else 1, beam=1)
        others: list[Drafter] = [NgramDrafter(), seer()]
        if hunted.intermediate is None:
            return RandomChoices([path, *others], next(seeds))
        between = models.intermediate(trees=True)
        leaf = RandomChoices([path, NgramDrafter()], next(seeds))
        hierarchy = HierarchyDrafter(leaf, between, leaf_limit=5, width=3 if models.takes_trees else 1)
        return RandomChoices([hierarchy, LeafDrafter(hierarchy, path), *others], next(seeds))

    if name == "random":
        needs = ("draft",) if hunted.intermediate is None else ("draft", "intermediate")
        return Mode(name="random", build=build, limit=9, needs=needs, target_trees=trees, draft_trees=True)
    if name.startswith("seer"):
        return Mode(name="seer", build=lambda models: seer(), limit=chance.choice((1, 3, 7, 15)), target_trees=trees)
    return str(name)


class _Side:
    """A model, and the conversations with it.

    Attributes:
        chats, notices: of the conversations, by their numbers.
        left: those of which an answer was stopped and continued.
        n_reading, n_staying: how many asks are being read, and how many of these wait until all others have been.
    """

    def __init__(self, open_model: Callable[[], TextModel], folder: Path, system: str = "") -> None:
        self._open, self._folder, self._system = open_model, folder, system
        self.n_reading = self.n_staying = 0
        self.model = open_model()
        self.chats: dict[int, ChatSession] = {}
        self.notices: dict[int, list[str]] = {}
        self.left: set[int] = set()

    def chat(self, number: int) -> ChatSession:
        if number not in self.chats:
            self.notices[number] = []
            self.chats[number] = self.model.chat(
                self._system or None, seed=number, on_notice=self.notices[number].append
            )
        return self.chats[number]

    def begin(self, ask: Ask, **options: Any) -> Reply | None:
        """Ask for a text; None for what brings none."""
        options = _options(ask) | options
        if "chat" not in ask:
            return self.model.generate(ask["prompt"], **options)
        chat, verb = self.chat(ask["chat"]), ask["verb"]
        if verb == "undo":
            chat.undo()
            return None
        return getattr(chat, verb)(*([] if verb == "retry" else [ask["text"]]), **options)

    def outcome(self, ask: Ask, reply: Reply, error: BaseException | None, events: Sequence[Any] = ()) -> Outcome:
        """Return what came of a reply that is over, which may have been continued."""
        return Outcome.of(reply, error, events)

    def keep(self, *, reopen: bool, caches: bool) -> None:
        """Save the conversations and load them again."""
        for number, chat in self.chats.items():
            chat.save(self._folder / f"{number}.chat", caches=caches)
            chat.close()
        if reopen:
            self.model.close()
            self.model = self._open()
        for number in self.chats:
            told = self.notices[number].append
            self.chats[number] = ChatSession.load(self.model, self._folder / f"{number}.chat", on_notice=told)

    def close(self) -> None:
        """Close what computes."""
        self.model.close()


class _Apart(_Side):
    """One in which nothing interrupts a conversation: each has a model of its own, and other texts have another."""

    def __init__(self, open_model: Callable[[], TextModel], folder: Path, system: str = "") -> None:
        super().__init__(open_model, folder, system)
        self._models: list[TextModel] = []

    def chat(self, number: int) -> ChatSession:
        shared = self.model
        if number not in self.chats:
            self.model = self._open()
            self._models.append(self.model)
        try:
            return super().chat(number)
        finally:
            self.model = shared

    def close(self) -> None:
        super().close()
        for model in self._models:
            model.close()


def _options(ask: Ask) -> dict[str, Any]:
    options = dict(ask["options"])
    if "logit_bias" in options:
        options["logit_bias"] = {int(token): bias for token, bias in options["logit_bias"].items()}
    return options


def _alone(plain: _Side, ask: Ask, known: list[Sequence[int]]) -> list[Outcome]:
    """Return what plain decoding writes for an ask, each text alone."""
    if "prompts" in ask:
        each = [{**ask, "prompt": prompt} for prompt in ask["prompts"]]
    elif "n" in ask:
        first = ask["options"].get("attempt", 0)
        each = [{**ask, "options": {**ask["options"], "attempt": first + k}} for k in range(ask["n"])]
    else:
        each = [ask]
    outcomes = []
    for one in each:
        try:
            reply = plain.begin(one, **({} if "chat" in one else {"reuse": False}))
        except EdgeSpecError as error:
            outcomes.append(Outcome.refused(error))
            continue
        if reply is None:
            outcomes.append(_said(plain, one))
            continue
        error, events = None, []
        try:
            events = [*reply.events()] if one.get("events") else [*reply] and []
        except EdgeSpecError as raised:
            error = raised
        known.append([*reply.prompt, *reply.token_ids])
        outcomes.append(Outcome.of(reply, error, events))
    return outcomes


def _said(side: _Side, ask: Ask) -> Outcome:
    return Outcome([], repr([message.content for message in side.chat(ask["chat"]).messages]), None)


def _read(side: _Side, ask: Ask, *, may_drop: bool) -> Generator[None, None, list[Outcome]]:
    """Read what an ask brings, a piece at a time; returns what came of it, nothing if it was dropped."""
    leave = ask.get("leave")
    drops = may_drop and ask.get("drops", False)
    if "prompts" in ask or "n" in ask:
        return (yield from _read_several(side, ask, leave, drops=drops))
    try:
        reply = side.begin(ask, **({"on_progress": _raising(ask["raises"])} if "raises" in ask else {}))
    except EdgeSpecError as error:
        return [Outcome.refused(error)]
    if reply is None:
        return [_said(side, ask)]
    error: Exception | None = None
    events, n_pieces = [], 0
    try:
        for batch in reply.event_batches() if ask.get("events") else reply:
            if ask.get("events"):
                events += batch
            n_pieces += 1
            yield
            if n_pieces == leave:
                break
    except (EdgeSpecError, Planted) as raised:
        error = raised
    side.n_staying += ask.get("stays", False)
    while ask.get("stays") and side.n_reading > side.n_staying:
        yield
    side.n_staying -= ask.get("stays", False)
    if n_pieces == leave and drops:
        n_written = len(reply.token_ids)
        del reply
        gc.collect()
        if "chat" not in ask:
            return []
        session = side.chat(ask["chat"])
        side.left.add(ask["chat"])
        return [_continued(session, ask, n_written)] if _is_cut(session) else []
    if n_pieces == leave:
        reply.cancel()
    if "chat" in ask and reply.finish_reason == "cancelled" and _is_cut(side.chat(ask["chat"])):
        side.left.add(ask["chat"])
        return [_continued(side.chat(ask["chat"]), ask, len(reply.token_ids))]
    if reply.finish_reason == "cancelled":
        events = []
    return [Outcome.of(reply, error, events)]


def _raising(n: int) -> Callable[[str, int, int], None]:
    """Return what raises when it is called for the ``n``-th time."""
    calls = count(1)

    def on_progress(*_: object) -> None:
        if next(calls) == n:
            raise Planted

    return on_progress


def _is_cut(session: ChatSession) -> bool:
    return bool(session.messages) and session.messages[-1].finish_reason == "cancelled"


def _continued(session: ChatSession, ask: Ask, n_written: int) -> Outcome:
    """Continue an answer to its end; returns all of it."""
    options = _options(ask)
    options["max_tokens"] = max(1, options["max_tokens"] - n_written)
    reply = session.continue_answer(**options)
    error = None
    try:
        reply.read()
    except EdgeSpecError as raised:
        error = raised
    found = Outcome.of(reply, error)
    found.text = session.messages[-1].content
    return found


def _read_several(side: _Side, ask: Ask, leave: int | None, *, drops: bool) -> Generator[None, None, list[Outcome]]:
    options = _options(ask)
    try:
        if "n" in ask:
            replies = side.model.generate(ask["prompt"], n=ask["n"], **options)
        else:
            replies = side.model.generate_many(ask["prompts"], **options)
    except EdgeSpecError as error:
        return [Outcome.refused(error)] * (ask["n"] if "n" in ask else len(ask["prompts"]))
    with suppress(EdgeSpecError):
        for n_pieces, (index, _) in enumerate(replies, 1):
            yield
            if n_pieces == leave and drops:
                return []
            if n_pieces == leave:
                replies.cancel(index)
    return [Outcome.of(replies[index]) for index in range(len(replies))]


def _side_by_side(side: _Side, asks: Sequence[Ask], seed: int) -> list[list[Outcome]]:
    """Read what several asks bring by turns, as chance wants it, some in threads of their own."""
    chance, found = random.Random(seed), [[] for _ in asks]
    in_threads = any(ask.get("threads") for ask in asks)
    readings = {place: _read(side, ask, may_drop=not in_threads) for place, ask in enumerate(asks)}
    failed: list[BaseException] = []
    side.n_reading = sum(not ask.get("threads") for ask in asks)

    def read(place: int) -> None:
        try:
            while True:
                next(readings[place])
        except StopIteration as over:
            found[place] = over.value
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=read, args=(place,)) for place, ask in enumerate(asks) if ask.get("threads")]
    turns = [place for place, ask in enumerate(asks) if not ask.get("threads")]
    for thread in threads:
        thread.start()
    while turns:
        place = chance.choice(turns)
        try:
            next(readings[place])
        except StopIteration as over:
            found[place] = over.value
            turns.remove(place)
            side.n_reading -= 1
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return found


def play(story: Mapping[str, Any], hunted: Hunted, folder: Path) -> Played:
    """Play a story and compare.

    Args:
        folder: for caches and saved conversations.
    """
    known: list[Sequence[int]] = []
    common = {"engine": story["engine"], "cache_dir": folder, **story["load"]}
    smaller = {"draft": hunted.draft, "intermediate": hunted.intermediate}
    if "draft_engine" in story:
        smaller |= {"draft_engine": story["draft_engine"], "intermediate_engine": story["draft_engine"]}
    may_differ = story["engine"] == "onnx" and hunted.target.is_file()
    threads = {"n_threads": story["threads"]} if may_differ else {}

    def drafted_model() -> TextModel:
        limits = RandomLimits(story["limits"], 20) if story["limits"] is not None else None
        model = edge_spec.load(
            hunted.target, speculation=_mode(story, hunted, known), next_limit=limits, **smaller, **common
        )
        if story["tight"]:
            model.ledger.claim("test", "the rest", max(0, (model.ledger.left_bytes or 0) - 1000))
        # llama.cpp's cells may know one text.
        if story.get("texts") and (pool := model.followed["target"].model.pool).max_paths > 1:
            more_bytes = (story["texts"] * model.n_ctx - pool.n_cells) * pool.cell_bytes
            model.ledger.claim("test", "the rest", max(0, (model.ledger.left_bytes or 0) - max(0, more_bytes)))
        return model

    system = story.get("system", "")
    kind = _Apart if story.get("apart") else _Side
    plain = kind(lambda: edge_spec.load(hunted.target, speculation="off", **{**common, **threads}), folder, system)
    drafted = _Side(drafted_model, folder, system)
    played = Played()
    try:
        if drafted.model.identity != "bitwise":
            played.counts[f"left out: a story with {drafted.model.identity}"] += 1
            return played
        if plain.model.profile != drafted.model.profile:
            played.counts["left out: a story with two profiles"] += 1
            return played
        parted: set[int] = set()
        for number, step in enumerate(story["steps"]):
            if "do" in step[0]:
                if step[0]["do"] == "rest":
                    drafted.model.check_memory()
                else:
                    drafted.keep(reopen=step[0]["do"] == "reopen", caches=step[0]["do"] != "save its text")
                continue
            known.clear()
            expected = [_alone(plain, ask, known) for ask in step]
            for place, (ask, wanted, found) in enumerate(
                zip(step, expected, _side_by_side(drafted, step, story["seed"] + number), strict=True)
            ):
                _compare(played, f"step {number}, ask {place}", story, ask, (wanted, found), drafted, parted)
    finally:
        plain.close()
        drafted.close()
    return played


def _compare(
    played: Played,
    where: str,
    story: Mapping[str, Any],
    ask: Ask,
    both: tuple[Sequence[Outcome], Sequence[Outcome]],
    drafted: _Side,
    parted: set[int],
) -> None:
    chat = ask.get("chat")
    if chat in parted:
        played.counts["left out: after that"] += 1
        return
    played.counts["left out: forgotten by its reader"] += len(both[0]) - len(both[1])
    for wanted, found in zip(*both, strict=False):
        difference = wanted.difference(found)
        reason = _may_differ(story, ask, wanted, found, drafted) if difference else ""
        if reason:
            if chat is not None:
                parted.add(chat)
            played.counts[f"left out: {reason}"] += 1
            continue
        played.counts.update(_kinds(story, ask, found, drafted))
        if difference:
            played.finds.append(f"{where}: {difference}")


def _may_differ(story: Mapping[str, Any], ask: Ask, wanted: Outcome, found: Outcome, drafted: _Side) -> str:
    """Return why a text may be another one; empty if it may not: whoever reads it has been told."""
    notices = (*drafted.notices.get(ask.get("chat", -1), ()), *found.notices)
    # That of the machine, which others use as well, may have been when it was written alone.
    if wanted.reason == "memory" or any(
        "words may differ" in each or "memory is scarce" in each for each in (*notices, *wanted.notices)
    ):
        return "told that memory is scarce"
    # Cells that were never moved get the same bits again, where the engine is known to give them.
    gets_same_bits = drafted.model.followed["target"].model.capabilities.reuse_step == 1
    is_full = any("context is full" in each for each in notices)
    is_told = any("read again" in each for each in notices) and found.identity == "rounding"
    if is_told and (is_full or not gets_same_bits):
        return "told that it was read again"
    if ask.get("chat") in drafted.left and is_full:
        # What is continued makes room sooner than what is written on.
        return "continued in a full context"
    is_tight = story["tight"] or story.get("texts")
    return "no memory" if is_tight and found.error == "BudgetExceeded" else ""


def _kinds(story: Mapping[str, Any], ask: Ask, found: Outcome, drafted: _Side) -> list[str]:
    options = ask["options"]
    what = "chat" if "chat" in ask else "several" if "n" in ask or "prompts" in ask else "reply"
    kinds = ["all", f"engine {story['engine']}", f"mode {story['mode']}", f"asked {what}", f"model {story['model']}"]
    kinds += [f"sampler {name}" for name in options if name not in ("seed", "max_tokens", "raw", "attempt", "stop")]
    kinds += [f"with {name}" for name in ("leave", "drops", "stays", "raises", "threads", "events") if ask.get(name)]
    load = story["load"]
    kinds += [f"with cache {load['kv_k']}/{load['kv_v']}"] if "kv_k" in load else []
    kinds += ["without flash attention"] if load.get("flash_attention") is False else []
    kinds += [f"with cells for {story['texts']} texts"] if story.get("texts") else []
    kinds += ["with a shared system prompt"] if story.get("system") and "chat" in ask else []
    kinds += ["with tight memory"] * story["tight"] + ["with another engine's drafter"] * ("draft_engine" in story)
    if any("context is full" in each for each in (*drafted.notices.get(ask.get("chat", -1), ()), *found.notices)):
        kinds.append("with overflow")
    return [*kinds, f"ended {found.error or found.reason}"]
