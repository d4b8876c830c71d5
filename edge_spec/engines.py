"""Which engine runs which model."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from edge_spec.errors import SettingsError

__all__ = ["ENGINES", "engines_of", "refuse_idle_settings"]

ENGINES = ("llama", "onnx")
"""llama.cpp, and ONNX Runtime with the same weights transcribed."""

_AUTO = "auto"
_DEFAULT = "llama"
_ONLY_LLAMA = ("n_threads_batch", "kv_k", "kv_v", "flash_attention", "repack")


def engines_of(
    engine: str, draft: str | None, middle: str | None, *, published: Collection[str] = ()
) -> dict[str, str]:
    """The engine of each role: target, draft and middle; the smaller models follow the target unless told otherwise.

    Args:
        published: the roles whose models are ONNX graphs, which only ONNX Runtime runs.

    Raises:
        SettingsError: there is no such engine, or it was asked for by name to run what it cannot.
    """
    wanted = {"target": engine, "draft": draft or engine, "middle": middle or engine}
    for name in wanted.values():
        if name not in (_AUTO, *ENGINES):
            raise SettingsError(f"there is no engine {name!r}", hint=f"choose {_AUTO}, {' or '.join(ENGINES)}")
    asked = {"target": engine, "draft": draft, "middle": middle}
    for role in published:
        if asked[role] == "llama":
            raise SettingsError(
                f"llama.cpp cannot run the {role} model, which is an ONNX graph", hint="leave the engine to auto"
            )
    found = {role: _DEFAULT if name == _AUTO else name for role, name in wanted.items()}
    return found | dict.fromkeys(published, "onnx")


def refuse_idle_settings(engines: Mapping[str, str], roles: tuple[str, ...], settings: Mapping[str, Any]) -> None:
    """Refuse settings of llama.cpp where it runs nothing.

    Args:
        roles: those that are opened.
        settings: what was asked for by name.

    Raises:
        SettingsError: a setting would change nothing.
    """
    idle = sorted(set(settings) & set(_ONLY_LLAMA))
    if idle and all(engines[role] != "llama" for role in roles):
        raise SettingsError(
            f"{', '.join(idle)} only has a meaning for llama.cpp, which runs none of these models",
            hint="leave it out, or use --engine llama",
        )
