"""What llama.cpp does not say of architectures when it is asked."""

from __future__ import annotations

__all__ = ["CANNOT_SHIFT", "KEEPS_SNAPSHOTS", "RECURRENT"]

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
