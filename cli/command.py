"""The command: find the verb, and turn errors into one line and an exit code.

Another distribution adds a verb by an entry point of the group ``edge_spec.verbs``, which names a click command.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib import import_module
from traceback import walk_tb
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from edge_spec.cli.printing import echo, safe
from edge_spec.cli.surroundings import require_surroundings
from edge_spec.errors import EdgeSpecError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["main", "root", "verb"]

_VERBS = {
    "run": "Write a reply to a prompt.",
    "chat": "Chat with a model.",
    "serve": "Serve a model to clients of OpenAI, Anthropic and ollama.",
    "check": "Compare the tokens of every way to speculate with plain decoding.",
    "bench": "Time every way to speculate against plain decoding.",
    "plan": "Show what would be loaded into a memory budget, and why.",
    "pull": "Fetch a model and its drafter from the hub.",
    "rm": "Remove models from the model folder.",
    "list": "List the models on this computer.",
    "info": "Show what a model is, and what fits it.",
    "pair": "Find the best drafter for a model on this computer.",
    "quantize": "Write a model in another type of weights.",
    "cache": "Show or clear what is kept on the disk besides models.",
    "config": "Show the current settings and where they come from.",
    "completion": "Print the completion script for a shell.",
    "doctor": "Show this computer and what limits memory on it.",
}

_ELSEWHERE = {"drafter": "training"}
"""Verbs of other distributions, and the folder of edge-spec's sources that holds each."""

_USAGE, _INTERRUPTED = 2, 130
_READER_GONE = 141
"""The exit code that a shell reports for a program ended by SIGPIPE."""

_LOST_PAGES = (
    "edge-spec: error: a model's file was cut short while it was in use, or its disk cannot be read; "
    "get the file again, and replace files instead of writing into them"
)


def verb(name: str) -> click.Command | None:
    """Return the command of a verb; None if there is no verb of that name."""
    if name in _VERBS:
        command = import_module(f"edge_spec.cli.{name}").command
    elif name not in (added := _added_verbs()):
        return None
    else:
        try:
            command = added[name].load()
        except ModuleNotFoundError as error:
            if error.name is None or not f"{added[name].module}.".startswith(f"{error.name}."):
                raise
            # Only the entry point remains: its files are gone, or not on Python's path.
            return None
    assert isinstance(command, click.Command)
    return command


def _is_verb(name: str) -> bool:
    """Return whether there is a verb of a name, here or in a distribution that is not installed.

    Nothing is imported.
    """
    return name in _VERBS or name in _ELSEWHERE or name in _added_verbs()


def _added_verbs() -> dict[str, EntryPoint]:
    """Return the verbs of other distributions; finding them reads the metadata of all that are installed.

    In a checkout, ``entry_points()`` would take what a build has left behind for the distribution of the same name, and
    hide its verbs.
    """
    # Import here: reading metadata imports a parser of e-mails, which would slow every start.
    from importlib.metadata import distributions

    every = (entry for installed in distributions() for entry in installed.entry_points)
    return {entry.name: entry for entry in every if entry.group == "edge_spec.verbs"}


def _described_verbs() -> dict[str, str]:
    """Return the line of help of every verb."""
    added = {name: command.get_short_help_str(100) for name in _added_verbs() if (command := verb(name)) is not None}
    return _VERBS | added


class _Verbs(click.Group):
    """Imports a verb's file only when it is called: ``--help`` should not wait for NumPy."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*_VERBS, *_added_verbs()]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        # Check before a verb's file imports a library that would end the process.
        if not ctx.resilient_parsing and args[0] != "completion":
            require_surroundings()
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from difflib import get_close_matches

            # Click knows no verbs, and older versions suggest none.
            near = get_close_matches(args[0], self.list_commands(ctx), n=1)
            if not near:
                raise
            raise click.UsageError(f"{error.message.rstrip('.')}. Did you mean {near[0]!r}?", ctx) from None

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = verb(cmd_name)
        if found is None and cmd_name in _ELSEWHERE and not ctx.resilient_parsing:
            how = f"run in edge-spec's sources: pip install ./{_ELSEWHERE[cmd_name]}"
            raise click.ClickException(f"the verb {cmd_name!r} is not installed; {how}")
        return found

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        # Click would import every verb to ask whether it is hidden.
        if incomplete.startswith("-"):
            return click.Command.shell_complete(self, ctx, incomplete)
        return [
            CompletionItem(name, help=said) for name, said in _described_verbs().items() if name.startswith(incomplete)
        ]

    def invoke(self, ctx: click.Context) -> Any:
        # Click would make it exit code 1.
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise click.exceptions.Exit(_READER_GONE) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_described_verbs().items()))


@click.group(
    cls=_Verbs,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Try: edge-spec run -p 'Tell me a story about a dog.'",
)
@click.version_option(None, "-V", "--version", package_name="edge-spec", message="edge-spec %(version)s")
@click.pass_context
def _edge_spec(ctx: click.Context) -> None:
    """Runs 4-bit language models on small computers, with drafts that never change a token."""
    name = ctx.invoked_subcommand
    if name is None:
        echo(ctx.get_help())
        return
    command = verb(name)
    # ``config`` must not fail on the settings that it shows.
    if command is not None and name not in ("config", "completion"):
        from edge_spec.cli.configuration import common_mistakes, defaults_of, read_configuration, table_mistakes
        from edge_spec.memory.mapped import explain_lost_pages

        explain_lost_pages(_LOST_PAGES)
        found = read_configuration(os.environ)
        unknown = (
            mistake for table in found.verbs if not _is_verb(table) for mistake in table_mistakes(None, table, found)
        )
        for mistake in (*common_mistakes(found), *unknown):
            raise mistake
        ctx.default_map = {name: defaults_of(command, name, found)}


def root() -> click.Group:
    """Return the command with all its verbs."""
    return _edge_spec


def main(arguments: list[str] | None = None) -> Any:
    """Run the command and leave with its exit code.

    0: done. 1: it failed; one line on standard error says why and what to do. 2: the command line would
    be invalid on any computer. 130: interrupted. 143: ended. 141: the reader of the output left.
    """
    if sys.stdout is None:
        sys.exit(_complain("standard output is closed; give it somewhere to write"))
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # A terminal that lacks a character shows a substitute rather than an error.
            stream.reconfigure(errors="replace")
    try:
        code = _edge_spec.main(args=arguments, prog_name="edge-spec", standalone_mode=False)
        # Flush here: the reader of the buffered rest may be gone.
        sys.stdout.flush()
    except click.UsageError as error:
        verb = error.ctx.command_path if error.ctx else "edge-spec"
        where = "edge-spec config" if _is_preset(error) else f"{verb} --help"
        code = _complain(f"{error.format_message().rstrip('.')}; see '{where}'", _USAGE)
    except click.ClickException as error:
        code = _complain(error.format_message(), error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        code = _INTERRUPTED
    except BrokenPipeError:
        code = _READER_GONE
    except EdgeSpecError as error:
        from edge_spec.cli.wording import described

        code = _complain(described(error), _USAGE if getattr(error, "argument", "") else 1)
    except OSError as error:
        if error.filename is None and _was_printing(error):
            code = _complain(f"standard output: {error.strerror or error}; check where it goes")
        else:
            name = f"{error.filename}: " if error.filename else ""
            is_folder = isinstance(error, IsADirectoryError)
            todo = "name a file in it" if is_folder else "check the path, its permissions and the disk"
            code = _complain(f"{name}{error.strerror or error}; {todo}")
        _forget_stdout()
    except MemoryError:
        code = _complain("out of memory; use a smaller --ctx or a smaller model")
    if code == _READER_GONE:
        _forget_stdout()
    sys.exit(code)


def _complain(message: str, code: int = 1) -> int:
    # The reader of standard error may be gone as well.
    with suppress(OSError, AttributeError):
        sys.stderr.write("edge-spec: error: " + " ".join(safe(message).split()) + "\n")
    return code


def _is_preset(error: click.UsageError) -> bool:
    """Return whether the value at fault comes from the user's settings."""
    name = getattr(getattr(error, "param", None), "name", None)
    return bool(error.ctx and name and error.ctx.get_parameter_source(name) == ParameterSource.DEFAULT_MAP)


def _was_printing(error: OSError) -> bool:
    """Return whether an error without a file comes from standard output: the command itself writes nothing else."""
    *_, (frame, _) = walk_tb(error.__traceback__)
    return str(frame.f_globals.get("__name__")).startswith((str(__package__), "click"))


def _forget_stdout() -> None:
    """Keep the interpreter from complaining once more when it flushes at exit."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        sys.stdout = None
