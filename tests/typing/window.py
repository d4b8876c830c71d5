"""A user's desktop program without its toolkit: a window, and a thread that has the model. Written from the documents.

python window.py FOLDER
"""

import queue
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import edge_spec

Event = tuple[str, str]


class Worker(threading.Thread):
    """Has the model and the conversation; tells events to a queue that the window empties."""

    def __init__(self, path: Path, events: "queue.SimpleQueue[Event]") -> None:
        super().__init__(name="model")
        self.path, self.events = path, events
        self.wanted: queue.SimpleQueue[Callable[[edge_spec.ChatSession], object] | None] = queue.SimpleQueue()
        self.reply: edge_spec.Reply | None = None

    def run(self) -> None:
        try:
            with edge_spec.load("demo", n_ctx=512, memory="1GiB", on_progress=self.progress) as model:
                session = self.opened(model)
                self.tell("ready", f"{model.info.name}, {model.info.quantization}, {len(session.messages)} messages")
                while (work := self.wanted.get()) is not None:
                    try:
                        work(session)
                    except (edge_spec.EdgeSpecError, OSError) as error:
                        self.tell("error", str(error))
        except edge_spec.EdgeSpecError as error:
            self.tell("error", f"{error} ({error.hint})")
        self.tell("over", "")

    def opened(self, model: edge_spec.TextModel) -> edge_spec.ChatSession:
        if self.path.exists():
            return edge_spec.ChatSession.load(model, self.path, on_notice=self.notice)
        return model.chat("You are a friend.", seed=7, max_tokens=60, on_notice=self.notice, on_progress=self.progress)

    def answer(self, session: edge_spec.ChatSession, question: str, max_tokens: int, *, endless: bool) -> None:
        self.reply = session.send(question, max_tokens=max_tokens, ignore_eos=endless)
        for piece in self.reply:
            self.tell("piece", piece)
        self.tell("answered", f"{self.reply.finish_reason} after {self.reply.statistics.tokens} tokens")

    def save(self, session: edge_spec.ChatSession) -> None:
        session.save(self.path)
        self.tell("saved", self.path.name)

    def progress(self, stage: str, done: int, total: int) -> None:
        self.tell("progress", f"{stage} {done / max(1, total):.0%}")

    def notice(self, sentence: str) -> None:
        self.tell("notice", sentence)

    def tell(self, what: str, text: str) -> None:
        self.events.put((what, text))


class Window:
    """What a toolkit would show; a timer would call ``update``."""

    def __init__(self, path: Path) -> None:
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.worker = Worker(path, self.events)
        self.shown: list[Event] = []
        self.worker.start()

    def ask(self, question: str, max_tokens: int = 20, *, endless: bool = False) -> None:
        self.worker.wanted.put(lambda it: self.worker.answer(it, question, max_tokens, endless=endless))

    def stop(self) -> None:
        if self.worker.reply is not None:
            self.worker.reply.cancel()

    def until(self, what: str) -> str:
        while True:
            self.shown.append(self.events.get(timeout=120))
            seen, text = self.shown[-1]
            if seen == what:
                return text
            if seen in ("error", "over"):
                raise SystemExit(f"{seen}: {text}")

    def close(self) -> None:
        self.worker.wanted.put(self.worker.save)
        self.worker.wanted.put(None)
        self.until("over")
        self.worker.join()


def main() -> None:
    window = Window(Path(sys.argv[1]) / "friend.chat")
    print("ready:", window.until("ready"))
    window.ask("Hello, who are you?")
    print("answered:", window.until("answered"))
    window.ask("Tell me a long story.", 400, endless=True)
    window.until("piece")
    window.stop()
    print("answered:", window.until("answered"))
    window.ask("")
    print("error:", window.until("error"))
    window.close()
    print("seen:", *sorted({what for what, _ in window.shown}))


if __name__ == "__main__":
    main()
