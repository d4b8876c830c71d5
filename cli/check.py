"""edge-spec check: compare the tokens of every way to speculate with plain decoding."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.resources import as_file, files
from typing import Any, TypeVar

import click

from edge_spec.cli.help import Count, Verb, default_of, option
from edge_spec.cli.interrupt import interruptible
from edge_spec.cli.options import load_arguments, max_tokens_option, model_options
from edge_spec.cli.output import print_json, print_notes, print_table
from edge_spec.cli.printing import echo
from edge_spec.cli.prompts import Prompt, read_prompts
from edge_spec.cli.reply_options import reply_arguments, sampler_options
from edge_spec.errors import SettingsError
from edge_spec.evaluation.check import Comparison, Unchecked, check, random_limits
from edge_spec.loading import load, possible_modes
from edge_spec.options import require_one_of
from edge_spec.sampling import SamplerSettings
from edge_spec.speculation.modes import MODES

__all__ = ["command", "modes_of", "modes_option", "prompts_or_own"]

Command = TypeVar("Command", bound=Callable[..., Any])

_MAX_TOKENS = default_of(check, "max_tokens")
_SEED = default_of(check, "seed")
_TEMPERATURES = ",".join(f"{temperature:g}" for temperature in default_of(check, "temperatures"))


def modes_option(default: str) -> Callable[[Command], Command]:
    """``--modes``."""
    text = f"Ways to speculate. {default}"
    return option("Runs", "--modes", metavar="A,B,...", help=text, check=lambda value: _named_modes(value))


def prompts_or_own(path: str | None) -> list[Prompt]:
    """Return the prompts of a file, or those that come with the package."""
    if path is not None:
        return read_prompts(path)
    with as_file(files("edge_spec.cli") / "prompts.txt") as own:
        return read_prompts(str(own))


@click.command("check", cls=Verb)
@option("Runs", "--prompts", metavar="FILE", help="One prompt per line, text or JSON. [default: the package's own]")
@option("Runs", "--limit", type=Count(), metavar="N", help="Only the first N prompts.")
@modes_option("[default: all that the given models allow]")
@option(
    "Runs",
    "--temperatures",
    default=_TEMPERATURES,
    metavar="X,Y,...",
    help="Every prompt is written at each of them.",
    check=lambda value: _temperatures(value),
)
@option("Runs", "--random-limits", is_flag=True, help="Draft a random number of tokens in every round.")
@max_tokens_option(_MAX_TOKENS, "Maximum tokens of a reply.")
@option("Replies", "--seed", type=int, default=_SEED, metavar="N", help="Random seed; prompt i uses N + i.")
@option("Replies", "--raw", is_flag=True, help="Continue prompts as they are, without the chat template.")
@option("Replies", "--ignore-eos", is_flag=True, help="Never let the model end a reply itself.")
@option("Output", "--json", "as_json", is_flag=True, help="Print one JSON object per comparison.")
@model_options
@sampler_options("temperature")
def command(**values: Any) -> int:
    """Compare the tokens of every way to speculate with plain decoding.

    Exits with 0 if every token of every reply is the same, with 1 if any differs.
    """
    prompts = [prompt.text for prompt in prompts_or_own(values["prompts"])[: values["limit"]]]
    arguments, asked = load_arguments(values), reply_arguments(values)
    modes = modes_of(values["modes"], arguments)
    temperatures = _temperatures(values["temperatures"])
    next_limit = random_limits(values["draft_limit"] or 9) if values["random_limits"] else None

    def compared() -> Iterator[Comparison | Unchecked | str]:
        return check(
            lambda mode: load(**arguments, speculation=mode, next_limit=next_limit),
            prompts,
            modes=modes,
            temperatures=temperatures,
            **asked,
        )

    return interruptible(lambda: _report(compared(), as_json=values["as_json"]), lambda: False)


def _report(compared: Iterable[Comparison | Unchecked | str], *, as_json: bool) -> int:
    """Print what ``check`` yields; the exit code is 1 if any token differs."""
    comparisons: list[Comparison] = []
    unchecked: list[str] = []
    for found in compared:
        if isinstance(found, str):
            print_notes((found,))
        elif isinstance(found, Unchecked):
            unchecked.append(found.mode)
        else:
            comparisons.append(found)
            if as_json:
                print_json(vars(found))
    if not comparisons and not unchecked:
        raise click.ClickException(
            "nothing to compare: every prompt exceeds the context, or only the mode off is available"
        )
    if comparisons and not as_json:
        _print(comparisons)
    if unchecked:
        raise click.ClickException(f"not checked, since this model does not support it: {', '.join(unchecked)}")
    return int(any(found.first_difference is not None for found in comparisons))


def modes_of(named: str | None, arguments: Mapping[str, Any]) -> list[str]:
    """Return the modes that ``--modes`` names, or all that the models allow; refuse one that lacks a model.

    Args:
        arguments: of ``load``.
    """
    possible = ["auto", *possible_modes(**arguments)]
    if named is None:
        return [mode for mode in possible if mode != "auto"]
    modes = _named_modes(named)
    for mode in modes:
        if mode not in possible:
            needed = " and ".join(f"--{need}" for need in MODES[mode].needs)
            raise click.UsageError(f"mode {mode!r} needs {needed}")
    return modes


def _named_modes(named: str) -> list[str]:
    modes = list(dict.fromkeys(mode.strip() for mode in named.split(",")))
    for mode in modes:
        require_one_of("modes", mode, ("auto", *MODES))
    return modes


def _temperatures(text: str) -> list[float]:
    try:
        return [SamplerSettings(temperature=float(each)).temperature for each in text.split(",")]
    except ValueError:
        raise SettingsError(f"is {text!r} and must be numbers, such as 0,0.8", argument="temperatures") from None
    except SettingsError as error:
        raise SettingsError(error.problem, argument="temperatures") from None


def _print(comparisons: list[Comparison]) -> None:
    groups: dict[tuple[str, float], list[Comparison]] = defaultdict(list)
    for found in comparisons:
        groups[found.mode, found.temperature].append(found)
    rows = []
    for (mode, temperature), found_here in groups.items():
        equal = sum(found.first_difference is None for found in found_here)
        n_tokens = sum(found.n_tokens for found in found_here)
        mean_length = sum(found.mean_length for found in found_here) / len(found_here)
        rows.append((mode, f"{temperature:g}", f"{n_tokens:,}", f"{equal} of {len(found_here)}", f"{mean_length:.2f}"))
    print_table(("mode", "temperature", "tokens", "equal replies", "tokens/round"), rows, right=range(1, 5))
    different = [found for found in comparisons if found.first_difference is not None]
    for found in different[:10]:
        echo(
            f"differs: {found.mode}, temperature {found.temperature:g}, prompt {found.prompt + 1}, "
            f"from token {found.first_difference}"
        )
    n_tokens = sum(found.n_tokens for found in comparisons)
    verdict = "every token is the same" if not different else f"{len(different)} replies differ"
    echo(f"{len(comparisons)} replies, {n_tokens:,} tokens: {verdict}")
