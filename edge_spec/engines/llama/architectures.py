"""Which architectures have recurrent layers in llama.cpp, and of which it keeps earlier states."""

from __future__ import annotations

__all__ = ["KEEPS_SNAPSHOTS", "RECURRENT"]

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
"""All of them; from ``llm_arch_is_recurrent`` and ``llm_arch_is_hybrid`` there."""
