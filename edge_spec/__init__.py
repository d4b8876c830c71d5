"""Runs 4-bit language models on small computers, with drafts that never change a token.

import edge_spec

with edge_spec.load() as model:
    for piece in model.generate("Tell me a story.", seed=1):
        print(piece, end="", flush=True)
"""

# Nothing is imported here, not even ``typing``: the command cannot hear Ctrl-C before this module is there.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from edge_spec.chat import ChatSession
    from edge_spec.errors import EdgeSpecError
    from edge_spec.generation.replies import Replies
    from edge_spec.generation.reply import Reply
    from edge_spec.generation.tools.calls import ToolCall
    from edge_spec.loading import aload, load
    from edge_spec.model import TextModel
    from edge_spec.model_info import ModelInfo
    from edge_spec.sampling import Sampler, SamplerSettings
    from edge_spec.speculation.drafters import Drafter
    from edge_spec.speculation.modes import Mode
    from edge_spec.speculation.statistics import Statistics
    from edge_spec.speculation.text import Text
    from edge_spec.speculation.tree import Tree

__all__ = [
    "ChatSession",
    "Drafter",
    "EdgeSpecError",
    "Mode",
    "ModelInfo",
    "Replies",
    "Reply",
    "Sampler",
    "SamplerSettings",
    "Statistics",
    "Text",
    "TextModel",
    "ToolCall",
    "Tree",
    "aload",
    "load",
]

_HOMES = {
    "ChatSession": "edge_spec.chat",
    "Drafter": "edge_spec.speculation.drafters",
    "EdgeSpecError": "edge_spec.errors",
    "Replies": "edge_spec.generation.replies",
    "Reply": "edge_spec.generation.reply",
    "Mode": "edge_spec.speculation.modes",
    "ModelInfo": "edge_spec.model_info",
    "Sampler": "edge_spec.sampling",
    "SamplerSettings": "edge_spec.sampling",
    "Statistics": "edge_spec.speculation.statistics",
    "Text": "edge_spec.speculation.text",
    "TextModel": "edge_spec.model",
    "ToolCall": "edge_spec.generation.tools.calls",
    "Tree": "edge_spec.speculation.tree",
    "aload": "edge_spec.loading",
    "load": "edge_spec.loading",
}


def __getattr__(name: str) -> "Any":
    """Import public names when they are first used."""
    if name == "__version__":
        from importlib.metadata import version

        return version("edge-spec")
    if name not in _HOMES:
        raise AttributeError(f"module 'edge_spec' has no attribute {name!r}")
    from importlib import import_module

    try:
        value = getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        # In a checkout Python finds this folder instead of the installed package, which contains the other folders.
        if error.name not in [f"edge_spec.{folder}" for folder in ("models", "memory", "cli")]:
            raise
        raise ImportError(
            "edge_spec is imported from its sources here, not from what was installed: "
            "run Python in another folder, or install the sources with 'pip install -e .'"
        ) from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
