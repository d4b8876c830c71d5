"""edge-spec doctor: show this computer and what limits memory on it."""

from __future__ import annotations

import click

from edge_spec.cli.help import Verb, option
from edge_spec.cli.output import print_json
from edge_spec.cli.printing import echo
from edge_spec.memory import Device, Hardware, Limit, describe, format_size, limits, probe, usage

__all__ = ["command"]


@click.command("doctor", cls=Verb)
@option("Output", "--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(as_json: bool) -> int:
    """Show this computer, what limits memory on it, and the libraries that edge-spec computes with."""
    from edge_spec.engines.registry import engines

    device, hardware, bounds = probe(), describe(), limits()
    libraries = _libraries()
    architectures = {each.title: each.architectures for each in engines() if each.architectures}
    if as_json:
        found = {
            "device": vars(device),
            "hardware": vars(hardware),
            "limits": [{"name": name, **vars(limit)} for name, limit in bounds],
            "process": vars(usage()),
            "libraries": libraries,
            "architectures": architectures,
        }
        print_json(found)
        return 0
    for name, said in (*_of_hardware(hardware), *_of_memory(device, bounds, hardware), *libraries.items()):
        echo(f"{name:<24} {said}")
    for title, names in architectures.items():
        echo(f"\n{title} runs GGUFs of the architectures {', '.join(names)}.")
    return 0


def _of_hardware(hardware: Hardware) -> list[tuple[str, str]]:
    rows = [("system", hardware.system)]
    if hardware.board:
        rows.append(("board", hardware.board))
    if hardware.processor:
        rows.append(("processor", hardware.processor))
    if hardware.n_performance_cores is not None:
        rows.append(("cores by kind", f"{hardware.n_performance_cores} fast, {hardware.n_efficiency_cores} efficient"))
    if hardware.features:
        rows.append(("instructions", " ".join(hardware.features)))
    if hardware.cache_bytes:
        rows.append(("caches", ", ".join(f"{name} {size >> 10:,} KiB" for name, size in hardware.cache_bytes.items())))
    return rows


def _of_memory(device: Device, bounds: list[tuple[str, Limit]], hardware: Hardware) -> list[tuple[str, str]]:
    rows = [("cores", f"{device.n_physical_cores}, {device.n_logical_cores} with hyperthreads")]
    for name, limit in bounds:
        rows.append((name, f"{format_size(limit.total_bytes)}, {format_size(max(0, limit.available_bytes))} left"))
    rows.append(("swap", f"{format_size(hardware.swap_bytes)}, not counted"))
    if hardware.unified_memory:
        rows.append(("unified memory", "shared with the graphics; the physical footprint counts"))
    rows.append(("usable now", format_size(device.available_bytes)))
    rows.append(("this process", format_size(usage().resident_bytes)))
    return rows


def _libraries() -> dict[str, str]:
    from edge_spec.engines.base import installed
    from edge_spec.engines.registry import engine, engine_names

    found = {"edge-spec": installed("edge-spec")}
    for name in sorted(engine_names()):
        found |= engine(name).libraries()
    return found
