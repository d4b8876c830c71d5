"""The ``edge-spec`` command: one file per verb, no logic of its own."""

# Python shows Ctrl-C as a traceback until ``main`` begins, so no slow import may stand here.
import sys

if __name__ != "edge_spec.cli":
    raise ImportError("import edge_spec.cli, not cli")

__all__ = ["main"]

_INTERRUPTED = 130


def main(arguments: list[str] | None = None) -> None:
    """Run the command and leave with its exit code, see ``edge_spec.cli.command``.

    Args:
        arguments: of the command line; None for those of this process, which is the command then: Ctrl-C ends it at
            once and without a word wherever nothing else listens for it.
    """
    try:
        # First, so that an interruption during imports exits as quietly as any other.
        if arguments is None:
            _leave_when_interrupted()
        try:
            from edge_spec.cli import command
        except (MemoryError, OSError) as error:
            what = getattr(error, "strerror", None) or "out of memory"
            sys.exit(f"edge-spec: error: {what} while Python starts; raise the limits that 'ulimit -a' lists")
        command.main(arguments)
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)


def _leave_when_interrupted() -> None:
    """Python's own handler raises an exception, which imports and callbacks of libraries swallow or print."""
    import os
    import signal

    # Keep other handlers: programs that a shell starts in the background ignore Ctrl-C.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda number, frame: os._exit(_INTERRUPTED))
