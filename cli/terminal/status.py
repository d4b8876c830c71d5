"""The status line, and the output of ``/stats``, ``/why`` and ``/memory``."""

from __future__ import annotations

from pathlib import Path
from textwrap import shorten

from edge_spec.chat import ChatSession
from edge_spec.chat.chat_model import ChatModel
from edge_spec.cli.output import decision_lines, what_drafts
from edge_spec.cli.printing import one_line
from edge_spec.generation.reply import Reply
from edge_spec.memory import format_size, probe, usage

__all__ = ["came_back", "choice_lines", "counted", "memory_lines", "statistics_lines", "status_line"]

_WIDEST_BAR = 30
_SHOWN = 60
"""The most letters of a question to show."""


def counted(n: int, what: str) -> str:
    """Return a number with a noun, whose plural ends in s."""
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def came_back(session: ChatSession, path: Path) -> str:
    """Return a line about a loaded conversation: the number of questions, and the last one."""
    asked = [message.content for message in session.messages if message.role == "user"]
    last = f"; the last: {shorten(one_line(' '.join(asked[-1].split())), _SHOWN, placeholder=' ...')}" if asked else ""
    return f"{counted(session.n_turns, 'question')} from {path}{last}"


def status_line(model: ChatModel, reply: Reply | None, n_used: int) -> str:
    """Return speed, mean accepted length, mode, context and memory, the most important first."""
    speed = []
    if reply is not None and reply.statistics.rounds:
        speed = [f"{reply.statistics.tokens_per_s:.1f} tokens/s", f"{reply.statistics.mean_length:.2f} tokens/round"]
    elif reply is not None and 0 < reply.prompt_progress[0] < reply.prompt_progress[1]:
        speed = ["reading, {:,} of {:,} tokens".format(*reply.prompt_progress)]
    held_mib = usage().resident_bytes / (1 << 20)
    return " · ".join([*speed, model.mode, f"{n_used}/{model.n_ctx} tokens", f"{held_mib:,.0f} MiB"])


def statistics_lines(session: ChatSession, reply: Reply | None) -> list[str]:
    """Return the output of ``/stats``: the last answer, then the conversation and the model."""
    model = session.model
    lines = _of_reply(reply) if reply is not None else ["no answer yet"]
    rows = {
        "conversation": f"{counted(session.n_turns, 'question')}, {counted(session.n_tokens, 'token')}; "
        f"the model sees {session.n_seen}",
        "context": f"{model.n_ctx} tokens",
        "speculation": f"{what_drafts(model)}, {'lossless' if model.lossless else 'not lossless'}",
        "profile": f"{model.profile.name}, identity {model.identity}",
    }
    return [*lines, *_rows(rows)]


def _of_reply(reply: Reply) -> list[str]:
    found = reply.statistics
    rows = {
        "answer": f"{len(reply.token_ids)} tokens, ended by {reply.finish_reason}, seed {reply.settings.seed}, "
        f"attempt {reply.settings.attempt}",
        "speed": f"{found.tokens_per_s:.1f} tokens/s over {found.tokens} tokens",
        "rounds": f"{found.rounds}, {found.mean_length:.2f} tokens each",
        "drafts": f"{found.accepted} of {found.drafted} drafted tokens accepted",
    }
    if found.acceptance_by_position:
        rows["by depth"] = " ".join(f"{share:.0%}" for share in found.acceptance_by_position)
    rows["seconds"] = (
        f"prompt {found.prefill_s:.3f}, drafting {found.draft_s:.3f}, verifying {found.verify_s:.3f}, "
        f"drawing {found.sample_s:.3f}, rest {found.rest_s:.3f}"
    )
    most = max(found.lengths.values(), default=0)
    bars = [
        f"  {n:2} per round  {'#' * -(-_WIDEST_BAR * found.lengths[n] // most)} {found.lengths[n]}"
        for n in sorted(found.lengths)
    ]
    return [*_rows(rows), *bars]


def _rows(rows: dict[str, str]) -> list[str]:
    return [f"{name:14}{text}" for name, text in rows.items()]


def choice_lines(model: ChatModel) -> list[str]:
    """Return the output of ``/why``: the choices of ``auto`` for the last answer, and the measured rounds."""
    if not model.choices:
        return [f"speculation {model.mode} does not choose; --speculation auto does"]
    rows = {}
    for name, choice in model.choices.items():
        rounds = f"{counted(choice.rounds, 'round')} of the last answer"
        if choice.round_s and choice.tokens_per_round is not None:
            speed = choice.tokens_per_round / choice.round_s
            each = f"{1e3 * choice.round_s:.2f} ms for {choice.tokens_per_round:.2f} tokens: {speed:.1f} tokens/s"
        else:
            each = "not tried yet"
        rows["plain" if name == "off" else name] = f"{rounds}; a round takes {each}" if choice.round_s else each
    return [*_rows(rows), *(decision_lines(model.decision) if model.decision is not None else ())]


def memory_lines(model: ChatModel) -> list[str]:
    """Return the output of ``/memory``: the ledger, and what memory degradation has dropped."""
    device = probe()
    free = f"free on this device: {format_size(device.available_bytes)} of {format_size(device.total_bytes)}"
    degradations = [f"dropped while memory is scarce: {name}" for name in model.degradations]
    return [*model.ledger.table(usage()).splitlines(), "", free, *degradations]
