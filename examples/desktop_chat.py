"""A desktop program that chats with a local model: a window of Tkinter, and a thread that has the model.

    python examples/desktop_chat.py [MODEL] [--folder FOLDER]

The window never waits for the model. What it wants goes to the thread as a function; what the thread has to tell comes
back through a queue, which the window empties thirty times a second. Conversations are files with their caches: one
that is opened again continues with the very same bits, and at once.
"""

from __future__ import annotations

import argparse
import contextlib
import queue
import sys
import threading
import tkinter as tk
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from tkinter import ttk
from typing import Any

import edge_spec

STAGES = {"transcribing": "Preparing the model, once", "loading": "Loading the model", "reading": "Reading"}


class Chat(threading.Thread):
    """The model and the conversation, in a thread of their own.

    Args:
        model: as for ``edge_spec.load``.
        folder: where conversations are kept.
        tell: called with the name of an event and its values, from this thread.
    """

    def __init__(self, model: str | None, folder: Path, tell: Callable[..., None]) -> None:
        # Not a daemon: the last conversation is saved before the program ends.
        super().__init__(name="model")
        self._model_name = model
        self._folder = folder
        self._tell = tell
        self._wanted: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._reply: edge_spec.Reply | None = None
        self._path = folder
        self._model: edge_spec.TextModel
        self._session: edge_spec.ChatSession

    # --- called by the window

    def send(self, text: str) -> None:
        self._wanted.put(lambda: self._answer(lambda: self._session.send(text)))

    def retry(self) -> None:
        self._wanted.put(lambda: self._answer(lambda: self._session.retry()))

    def open(self, path: Path | None) -> None:
        """Continue the conversation in a file, or begin a new one."""
        self.stop()
        self._wanted.put(lambda: self._open(path))

    def stop(self) -> None:
        """Stop the answer that is being written; what is there stays."""
        reply = self._reply
        if reply is not None:
            reply.cancel()

    def quit(self) -> None:
        self.stop()
        self._wanted.put(None)

    # --- in the thread

    def run(self) -> None:
        try:
            with edge_spec.load(self._model_name, on_progress=self._progress) as self._model:
                self._tell("ready", self._model.info)
                self._open(None)
                while (work := self._wanted.get()) is not None:
                    try:
                        work()
                    except (edge_spec.EdgeSpecError, OSError) as error:
                        self._tell("failed", str(error))
        except (edge_spec.EdgeSpecError, OSError) as error:
            self._tell("failed", str(error))
        finally:
            self._tell("over")

    def _progress(self, stage: str, done: int, total: int) -> None:
        self._tell("progress", stage, done, total)

    def _notice(self, sentence: str) -> None:
        self._tell("notice", sentence)

    def _open(self, path: Path | None) -> None:
        if path is None:
            self._session = self._model.chat(on_notice=self._notice, on_progress=self._progress, max_tokens=400)
            self._path = self._folder / f"{datetime.now():%Y-%m-%d %H.%M.%S}.chat"
        else:
            session = edge_spec.ChatSession.load(self._model, path, on_notice=self._notice)
            session.on_progress = self._progress
            self._session, self._path = session, path
        self._tell("opened", self._path, [(each.role, each.content) for each in self._session.messages])

    def _answer(self, begin: Callable[[], edge_spec.Reply]) -> None:
        with begin() as self._reply:
            for piece in self._reply:
                self._tell("piece", piece)
        reply, self._reply = self._reply, None
        self._session.save(self._path)
        self._tell("answered", reply.finish_reason, reply.statistics)


class Window(tk.Tk):
    """Shows a conversation and the list of earlier ones."""

    def __init__(self, model: str | None, folder: Path, say: str | None = None) -> None:
        super().__init__()
        self.title("edge-spec chat")
        self.geometry("900x620")
        self.answers: list[str] = []
        self.failure = ""
        self._say = say
        self._folder = folder
        self._events: queue.SimpleQueue[tuple[str, tuple[Any, ...]]] = queue.SimpleQueue()
        self._chat = Chat(model, folder, lambda name, *values: self._events.put((name, values)))
        self._is_over = False
        self._build()
        self._listed()
        self.protocol("WM_DELETE_WINDOW", self.leave)
        self._chat.start()
        self._poll()

    def leave(self) -> None:
        """Stop, let the thread save and close the model, then close the window."""
        self._status.set("Closing …")
        self._chat.quit()
        self._is_over = True

    # --- what it is made of

    def _build(self) -> None:
        ttk.Style(self).theme_use("clam")
        self._status, self._question = tk.StringVar(value="Loading the model …"), tk.StringVar()
        side = ttk.Frame(self, padding=6)
        side.pack(side="left", fill="y")
        ttk.Button(side, text="New conversation", command=lambda: self._chat.open(None)).pack(fill="x")
        self._list = tk.Listbox(side, width=22, activestyle="none", exportselection=False)
        self._list.pack(fill="y", expand=True, pady=6)
        self._list.bind("<<ListboxSelect>>", lambda _: self._select())
        bottom = ttk.Frame(self, padding=6)
        bottom.pack(side="bottom", fill="x")
        ttk.Label(bottom, textvariable=self._status).pack(side="left")
        self._bar = ttk.Progressbar(bottom, length=160)
        self._bar.pack(side="right")
        line = ttk.Frame(self, padding=(6, 0))
        line.pack(side="bottom", fill="x")
        self._entry = ttk.Entry(line, textvariable=self._question, state="disabled")
        self._entry.pack(side="left", fill="x", expand=True)
        self._entry.bind("<Return>", lambda _: self._send())
        self.bind("<Escape>", lambda _: self._chat.stop())
        self._stop = ttk.Button(line, text="Stop", command=self._chat.stop, state="disabled")
        self._retry = ttk.Button(line, text="Retry", command=self._again, state="disabled")
        for button in (self._stop, self._retry):
            button.pack(side="left", padx=(6, 0))
        self._text = tk.Text(self, wrap="word", state="disabled", padx=12, pady=8, relief="flat", font="TkTextFont")
        self._text.tag_configure("user", foreground="#1d4ed8", spacing1=10)
        self._text.tag_configure("assistant", spacing1=4)
        self._text.tag_configure("notice", foreground="#6b7280")
        self._text.pack(fill="both", expand=True, padx=6, pady=6)

    def _listed(self) -> None:
        self._files = sorted(self._folder.glob("*.chat"), reverse=True)
        self._list.delete(0, "end")
        self._list.insert("end", *(path.stem for path in self._files))

    # --- what the user does

    def _send(self) -> None:
        text = self._question.get().strip()
        if text and str(self._entry["state"]) == "normal":
            self._question.set("")
            self._put(text + "\n", "user")
            self._busy(True)
            self._chat.send(text)

    def _again(self) -> None:
        start = self._text.index("answer")
        self._text.configure(state="normal")
        self._text.delete(start, "end-1c")
        self._text.configure(state="disabled")
        self._busy(True)
        self._chat.retry()

    def _select(self) -> None:
        chosen = self._list.curselection()  # type: ignore[no-untyped-call]
        if chosen:
            self._busy(True)
            self._chat.open(self._files[chosen[0]])

    def _busy(self, is_busy: bool) -> None:
        """While an answer is written there is nothing to send, and something to stop."""
        if is_busy:
            self.answers.append("")
            self._mark()
        self._entry.configure(state="disabled" if is_busy else "normal")
        self._stop.configure(state="normal" if is_busy else "disabled")
        self._retry.configure(state="disabled" if is_busy or not any(self.answers) else "normal")
        if not is_busy:
            self._entry.focus_set()

    def _mark(self) -> None:
        """The next answer begins here; ``Retry`` takes it away from here on."""
        self._text.mark_set("answer", "end-1c")
        self._text.mark_gravity("answer", "left")

    def _put(self, text: str, tag: str) -> None:
        self._text.configure(state="normal")
        self._text.insert("end-1c", text, tag)
        self._text.configure(state="disabled")
        self._text.see("end")

    # --- what the thread tells

    def _poll(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                name, values = self._events.get_nowait()
                getattr(self, f"_on_{name}")(*values)
        if self._is_over and not self._chat.is_alive():
            self.destroy()
        else:
            self.after(33, self._poll)

    def _on_ready(self, info: edge_spec.ModelInfo) -> None:
        self.title(f"{info.name} · edge-spec chat")

    def _on_progress(self, stage: str, done: int, total: int) -> None:
        self._bar.configure(maximum=total, value=done if done < total else 0)
        self._status.set(f"{STAGES.get(stage, stage)} … {100 * done // max(total, 1)} %")

    def _on_opened(self, path: Path, messages: list[tuple[str, str]]) -> None:
        self._text.configure(state="normal")
        self._text.delete("1.0", "end")
        self._text.configure(state="disabled")
        self.answers = [content for role, content in messages if role == "assistant"]
        for role, content in messages:
            self._mark()
            self._put(content.strip() + "\n", role)
        self._status.set(path.stem)
        self._busy_over()
        if self._say:
            self._question.set(self._say)
            self._say = None
            self._send()

    def _on_piece(self, piece: str) -> None:
        self.answers[-1] += piece
        self._status.set("Writing … Escape stops.")
        self._put(piece, "assistant")

    def _on_answered(self, reason: str, done: edge_spec.Statistics) -> None:
        self._put("\n", "assistant")
        speed = f"{done.tokens_per_s:.0f} tokens/s, {done.mean_length:.2f} tokens per round"
        self._status.set(f"{done.tokens} tokens, {speed}" + (", stopped" if reason == "cancelled" else ""))
        self._listed()
        self._busy_over()
        self.event_generate("<<Answered>>")

    def _busy_over(self) -> None:
        self._bar.configure(value=0)
        self._busy(False)

    def _on_notice(self, sentence: str) -> None:
        self._put(sentence + "\n", "notice")

    def _on_failed(self, sentence: str) -> None:
        self._put(sentence + "\n", "notice")
        self._status.set("That did not work.")
        self._busy_over()
        self.failure = sentence
        self.event_generate("<<Failed>>")

    def _on_over(self) -> None:
        self._entry.configure(state="disabled")


def main() -> int:
    """Open the window; with --say, ask one question and print the answer."""
    parser = argparse.ArgumentParser(description="Chat with a local model in a window.")
    parser.add_argument("model", nargs="?", help="a GGUF or a name; smollm2 or the demo model if left out")
    parser.add_argument("--folder", type=Path, default=Path.home() / "edge-spec chats", help="keeps conversations")
    parser.add_argument("--say", help="ask this, print the answer and leave; shows that a packaged program works")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    try:
        window = Window(given.model, given.folder, given.say)
    except tk.TclError as error:
        print(f"desktop_chat: no window can be opened: {error}", file=sys.stderr)
        return 1
    if given.say:
        window.bind("<<Answered>>", lambda _: window.after(500, window.leave))
        window.bind("<<Failed>>", lambda _: window.leave())
    window.mainloop()
    if not given.say:
        return 0
    print("".join(window.answers[-1:]))
    if window.failure:
        print(f"edge-spec: {window.failure}", file=sys.stderr)
    return 1 if window.failure or not any(window.answers) else 0


if __name__ == "__main__":
    sys.exit(main())
