"""The thread that computes for a model: it advances replies while somebody waits for one, and looks after memory."""

from __future__ import annotations

import logging
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from edge_spec.errors import Closed, EdgeSpecError, UnfinishedReply
from edge_spec.generation.reader import Reader

__all__ = ["Awaited", "Wait", "Worker", "Workload"]

_RECHECK_S = 0.05
"""Where no sequence that somebody waits for can be advanced, it is tried again after so long."""

_IDLE_S = 1.0
"""An idle worker looks after memory so often. Replies look for themselves, before every step."""

_SIGNALS_S = 0.2
"""Windows handles signals only when a wait ends."""


class Awaited(Protocol):
    """A text whose steps a reader can wait for."""

    @property
    def n_news(self) -> float:
        """Number of steps that the reader has not taken; infinite where it has to know at once, such as at the end."""


A = TypeVar("A", bound=Awaited)


class Wait(Generic[A]):
    """Somebody waits until one of some sequences has something new.

    Args:
        sequences: those that are waited for.
        reader: who waits.
        at_least: so many steps of one of them, or its end.
        wake: called once, in the worker's thread, when there is something new or the wait has failed.

    Attributes:
        error: why the wait has failed.
        is_left: nobody waits any more.
    """

    __slots__ = ("at_least", "error", "is_left", "reader", "sequences", "wake")

    def __init__(
        self, sequences: Sequence[A], reader: Reader, wake: Callable[[], object], *, at_least: int = 1
    ) -> None:
        self.sequences = sequences
        self.reader = reader
        self.at_least = at_least
        self.wake = wake
        self.error: BaseException | None = None
        self.is_left = False

    @property
    def is_over(self) -> bool:
        """Whether there is something new."""
        return any(sequence.n_news >= self.at_least for sequence in self.sequences)


class Workload(ABC, Generic[A]):
    """The work of a worker: steps, and memory between them."""

    @abstractmethod
    def step(self, waits: Sequence[Wait[A]]) -> bool:
        """Advance the sequences that are waited for, and others with them; return whether any could be advanced."""

    @abstractmethod
    def look_after_memory(self) -> object:
        """Called now and then while nobody waits."""


_Message: TypeAlias = Wait[Any] | Callable[[], object] | None
"""A reader's wait, a job to run between two steps, or None to end the thread."""


class Worker(Generic[A]):
    """One thread, which starts when it is first needed. Nothing is computed while nobody waits.

    Whoever waits can be interrupted; what the thread computes cannot, so that a step is always whole. The thread holds
    its workload only while it works. A process that was forked has no such thread: a model is loaded there anew.

    Args:
        workload: what it does.
        looks_after_memory: whether it does so while nobody waits.
    """

    def __init__(self, workload: Workload[A], *, looks_after_memory: bool) -> None:
        self._inbox: SimpleQueue[_Message] = SimpleQueue()
        self._workload = weakref.ref(workload)
        self._looks_after_memory = looks_after_memory
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._end: Callable[[], object] = lambda: None
        self._holder: int | None = None
        self._is_closed = False
        if looks_after_memory:
            self._start()

    @property
    def is_closed(self) -> bool:
        """Whether nothing is computed any more."""
        return self._is_closed

    @property
    def is_here(self) -> bool:
        """Whether the calling thread is the worker's own, or has paused it."""
        here = threading.get_ident()
        return self._holder == here or (self._thread is not None and self._thread.ident == here)

    # --- for readers

    def wait(self, sequences: Sequence[A], reader: Reader, at_least: int = 1) -> None:
        """Wait until there are so many steps of one of some sequences, or its end; a signal may interrupt it.

        Raises:
            Closed: the worker is closed, or this process was forked from the one that has it.
            UnfinishedReply: called from the worker's own thread.
        """
        woken = threading.Lock()
        woken.acquire()
        wait = Wait(sequences, reader, woken.release, at_least=at_least)
        try:
            self._post(wait)
            self._acquire(woken)
        except BaseException as error:
            wait.is_left = True
            # Closing has ended what is waited for.
            if not (isinstance(error, Closed) and wait.is_over):
                raise
        if wait.error is not None:
            raise wait.error

    async def wait_async(self, sequences: Sequence[A], reader: Reader, at_least: int = 1) -> None:
        """``wait`` for event loops."""
        from asyncio import get_running_loop

        loop = get_running_loop()
        woken = loop.create_future()

        def told() -> None:
            if not woken.done():
                woken.set_result(None)

        def wake() -> None:
            # A loop that was closed has nobody who waits.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(told)

        wait = Wait(sequences, reader, wake, at_least=at_least)
        try:
            self._post(wait)
            await woken
        except Closed:
            # Closing has ended what is waited for.
            if not wait.is_over:
                raise
        finally:
            wait.is_left = True
        if wait.error is not None:
            raise wait.error

    @contextmanager
    def pause(self) -> Iterator[None]:
        """No step is computed while the context lasts; the calling thread may use the models.

        Raises:
            UnfinishedReply: this thread computes, or has paused it already. Closed: as ``wait``.
        """
        granted, over = threading.Lock(), threading.Lock()
        granted.acquire()
        over.acquire()

        def hold() -> None:
            granted.release()
            over.acquire()

        try:
            self._post(hold)
            self._acquire(granted)
            if self._is_closed:
                raise Closed("the model")
            self._holder = threading.get_ident()
            try:
                yield
            finally:
                self._holder = None
        finally:
            over.release()

    def do(self, work: Callable[[], object]) -> None:
        """Do something between two steps and wait for it; a signal interrupts the wait, never the work.

        Raises:
            UnfinishedReply, Closed: as ``pause``. Whatever ``work`` raises.
        """
        done, failed = threading.Lock(), list[BaseException]()
        done.acquire()

        def job() -> None:
            try:
                work()
            except BaseException as error:
                failed.append(error)
            finally:
                done.release()

        self._post(job)
        self._acquire(done)
        if failed:
            raise failed.pop()

    def soon(self, work: Callable[[], object]) -> None:
        """Do something after the present step; at once if nothing was ever computed, or never will be.

        Never waits, so that it may be called wherever Python collects garbage.
        """
        if self._thread is None or not self._thread.is_alive():
            work()
        else:
            self._inbox.put(work)

    def close(self, then: Callable[[], object]) -> None:
        """Do ``then`` after the present step, once, and end the thread. Called from that thread, it does not wait."""
        if self.is_here:
            self._inbox.put(lambda: self._close(then))
            return
        with suppress(Closed), self.pause():
            self._close(then)
        self._end()
        if self._thread is not None:
            # Another thread may be closing it.
            self._thread.join()

    def _close(self, then: Callable[[], object]) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._inbox.put(None)
            then()

    # --- the thread

    def _post(self, message: _Message) -> None:
        if self.is_here:
            raise UnfinishedReply("a round of this model")
        if self._is_closed:
            raise Closed("the model")
        self._start()
        if self._thread is None or not self._thread.is_alive():
            # It has ended with its workload, or this process was forked.
            raise Closed("the model")
        self._inbox.put(message)
        if self._is_closed:
            # The thread may have taken its last messages before.
            raise Closed("the model")

    def _acquire(self, lock: threading.Lock) -> None:
        """Acquire a lock that the thread releases; a signal may interrupt it.

        Raises:
            Closed: the thread is gone.
        """
        while not lock.acquire(timeout=_SIGNALS_S):
            if self._thread is None or not self._thread.is_alive():
                raise Closed("the model")

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                self._thread = thread = threading.Thread(
                    target=_run,
                    args=(self._inbox, self._workload, self._looks_after_memory),
                    name="edge-spec",
                    daemon=True,
                )
                workload = self._workload()
                assert workload is not None
                # At the end of the program as well: a thread must not be inside a library that is being taken down.
                self._end = end = weakref.finalize(workload, _stop, self._inbox, thread)
                try:
                    thread.start()
                except Exception:
                    self._thread = None
                    end.detach()
                    raise


def _stop(inbox: SimpleQueue[_Message], thread: threading.Thread) -> None:
    inbox.put(None)
    # The thread itself may have been the last to hold the workload.
    if thread is not threading.current_thread() and thread.ident is not None:
        thread.join()


def _run(
    inbox: SimpleQueue[_Message],
    found: weakref.ref[Workload[Any]],
    looks_after_memory: bool,
) -> None:
    was_logged = False
    while True:
        # Nothing here may hold the workload meanwhile.
        messages = _received(inbox, _IDLE_S if looks_after_memory else None)
        workload = found()
        if workload is None:
            return
        if not messages:
            was_logged = _look_after(workload, was_logged)
        elif not _serve(workload, messages, inbox):
            # What came too late has to be told so, too.
            _serve(workload, [*_received(inbox, 0), None], inbox)
            return
        del workload, messages


def _received(inbox: SimpleQueue[_Message], seconds: float | None) -> list[_Message]:
    """Return what has been asked for since the last time, or is within so many seconds; without end if None."""
    messages = list[_Message]()
    with suppress(Empty):
        messages.append(inbox.get(timeout=seconds) if seconds != 0 else inbox.get_nowait())
        while True:
            messages.append(inbox.get_nowait())
    return messages


def _serve(workload: Workload[Any], messages: list[_Message], inbox: SimpleQueue[_Message]) -> bool:
    """Do what is asked for, and go on until nobody waits any more; False if it is the end."""
    waits = list[Wait[Any]]()
    while True:
        for message in messages:
            if isinstance(message, Wait):
                waits.append(message)
            elif message is not None:
                _done(message)
                # It may have closed the model: nobody is served before the inbox is empty.
                messages += _received(inbox, 0)
        waits = [wait for wait in waits if not wait.is_left and not _is_woken(wait)]
        if None in messages:
            for wait in waits:
                _fail(wait, Closed("the model"))
            return False
        if not waits:
            return True
        worked = True
        try:
            worked = workload.step(waits)
        except BaseException as error:
            # Those whose texts have ended with it find it in their logs. If there are none, all that wait are told.
            if not any(wait.is_over for wait in waits):
                for wait in waits:
                    _fail(wait, error)
                waits = []
        messages = _received(inbox, 0 if worked else _RECHECK_S)


def _done(work: Callable[[], object]) -> None:
    try:
        work()
    except BaseException as error:
        logging.getLogger(__name__).warning("%s: %s", type(error).__name__, error)


def _is_woken(wait: Wait[Any]) -> bool:
    if wait.is_over:
        wait.wake()
        return True
    return False


def _fail(wait: Wait[Any], error: BaseException) -> None:
    wait.error = error
    wait.wake()


def _look_after(workload: Workload[Any], was_logged: bool) -> bool:
    """Look after memory; return whether an unexpected error has been logged, now or before: only the first one is.

    After a failure it is tried again: memory may be needed more then.
    """
    try:
        workload.look_after_memory()
    except (EdgeSpecError, MemoryError, OSError):
        # What could not be given back or taken now is tried again.
        pass
    except Exception as error:
        if not was_logged:
            kind = type(error).__name__
            logging.getLogger(__name__).warning("memory could not be looked after (%s: %s)", kind, error)
        return True
    return was_logged
