"""Laws of what is written for requests: who leaves keeps nobody waiting, and a server without memory leaves nothing."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from edge_spec.errors import BudgetExceeded, Cancelled
from edge_spec.memory import Ledger, Loan
from edge_spec.model import TextModel
from edge_spec.server.jobs import Job
from edge_spec.server.service import Service
from edge_spec.server.settings import ServerSettings
from edge_spec.server.work_queue import WorkQueue
from edge_spec.server.writing import Work


@pytest.mark.long
def test_a_client_that_leaves_keeps_nobody_waiting_for_a_step(demo_models: Any) -> None:
    """Its replies end as soon as the present step has, and no event loop waits for that."""
    model: TextModel = demo_models("onnx")
    is_paused, may_end, waited = threading.Event(), threading.Event(), list[bool]()

    def hold() -> None:
        with model.worker.pause():
            is_paused.set()
            waited.append(not may_end.wait(60))

    async def leave() -> None:
        queue = WorkQueue(max_waiting=8, at_once=2)
        queue.join()
        job = Job(requests=model.requests([[1, 2, 3]], max_tokens=400, ignore_eos=True), is_stream=True)
        work = Work(job, model, queue, Loan(Ledger(), "test"))
        await anext(work)
        holder = threading.Thread(target=hold)
        holder.start()
        is_paused.wait()
        work.stop()
        may_end.set()
        holder.join()
        with pytest.raises(Cancelled):
            async for _ in work:
                pass
        assert work.answers[0].finish_reason == "cancelled"
        await work.task
        assert (queue.n_answered, queue.n_waiting) == (0, 0)

    asyncio.run(leave())
    assert waited == [False]


def test_a_server_that_has_no_memory_leaves_no_thread(demo_models: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model: TextModel = demo_models("onnx")

    def claim(*_: object) -> None:
        raise BudgetExceeded("requests", needed_bytes=1, allowed_bytes=0, hint="")

    monkeypatch.setattr(type(model.ledger), "claim", claim)

    async def serve() -> None:
        before = {*threading.enumerate()}
        with pytest.raises(BudgetExceeded):
            Service(model, ServerSettings(name="demo"))
        assert {*threading.enumerate()} <= before

    asyncio.run(serve())
