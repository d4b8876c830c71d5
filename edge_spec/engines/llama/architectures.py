"""What llama.cpp does not say of architectures when it is asked."""

from __future__ import annotations

__all__ = ["CANNOT_SHIFT", "GRAPH_NODES", "KEEPS_SNAPSHOTS", "RECURRENT", "most_rows"]

KEEPS_SNAPSHOTS = frozenset(
    (
        "bailingmoe3",
        "deepseek4",
        "glm5-next",
        "kimi-k3",
        "lfm2",
        "lfm2moe",
        "nemotron_h",
        "nemotron_h_moe",
        "qwen35",
        "qwen35moe",
        "qwen4exp",
    )
)
"""Those whose graphs leave snapshots; from ``llm_arch_supports_rs_rollback`` in llama.cpp's llama-arch.cpp."""

RECURRENT = KEEPS_SNAPSHOTS | frozenset(
    (
        "arwkv7",
        "falcon-h1",
        "granitehybrid",
        "jamba",
        "kimi-linear",
        "mamba",
        "mamba2",
        "minimax-01",
        "plamo2",
        "qwen3next",
        "rwkv6",
        "rwkv6qwen2",
        "rwkv7",
    )
)
"""All with recurrent layers; from ``llm_arch_is_recurrent`` and ``llm_arch_is_hybrid`` there."""

CANNOT_SHIFT = frozenset(
    (
        # Some of their layers know no positions, and the library turns the keys of every layer.
        "afmoe",
        "llama4",
        "muse-glimmer",
        "smollm3",
        # Their positions are added to the input, and no turn takes them out of a key.
        "gpt2",
        "mpt",
        "starcoder",
        # An indexer's keys lie beside the others, with positions at another place.
        "deepseek32",
        "dots3note",
        "glm-dsa",
        "hy_v4",
        "minimax-m3",
    )
)
"""Those whose keys the library moves to wrong positions; from the graphs in its src/models."""

GRAPH_NODES = {
    "bailingmoe3": 40,
    "deepseek4": 40,
    "glm5-next": 160,
    "hrm_text": 80,
    "hy_v4": 40,
    "kimi-k3": 160,
    "kimi-linear": 40,
    "minimax-01": 40,
    "minimax-m3": 40,
    "nanbeige": 40,
    "qwen35": 40,
    "qwen35moe": 40,
    "qwen3next": 40,
    "qwen4exp": 40,
}
"""For how many operations the library's graphs have room, by each token of a chunk; from ``graph_max_nodes`` in its
llama-context.cpp. Those of other architectures depend on the number of tensors alone, and are small."""

_FEW_ROWS = 8
"""Where room depends on the number of tensors, and each snapshot takes some of it. In LFM2-8B-A1B's 24 layers and
Nemotron-H's 52 the library ends the process where a decode has 16 rows."""


def most_rows(architecture: str) -> int | None:
    """Return how many rows a decode with snapshots may have for the library's sake; None for any number."""
    return None if architecture not in KEEPS_SNAPSHOTS or architecture in GRAPH_NODES else _FEW_ROWS
