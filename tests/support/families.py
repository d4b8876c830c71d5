"""Small models of the architectures that differ from others by settings, norms and places only."""

from __future__ import annotations

from typing import Any

from gguf_files import EXPERTS, MATRICES, SHARED

__all__ = ["EXPERT_FAMILIES", "FAMILIES", "FLOAT_KINDS"]

FLOAT_KINDS = dict.fromkeys((*MATRICES, *EXPERTS, *SHARED), "F32")
"""Weight types for ``write_gguf``: floats, so that only sums round."""

_BIASED = ("attn_output", "ffn_gate", "ffn_up", "ffn_down")
_MULTIPLIERS = {"embedding_scale": 3.0, "residual_scale": 0.4, "logit_scale": 2.5}
_YARN = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 16,
}

_GPT_OSS: dict[str, Any] = {
    "architecture": "gpt-oss",
    "biases": True,
    "more_biases": ("attn_output",),
    "pre_norms": ("attn_norm", "post_attention_norm"),
    "expert_biases": True,
    "sinks": True,
}

_AFTER: dict[str, Any] = {"pre_norms": (), "post_norms": True}

FAMILIES: dict[str, dict[str, Any]] = {
    "smollm3": {"architecture": "smollm3", "n_layers": 4, "heads": (4, 1), "tied": True},
    "mistral3": {
        "architecture": "mistral3",
        "more_biases": _BIASED,
        "extra": {
            **_YARN,
            "attention.temperature_scale": 0.3,
            "rope.scaling.yarn_log_multiplier": 0.5,
            "rope.scaling.yarn_beta_fast": 0.9,
            "rope.scaling.yarn_beta_slow": 0.2,
        },
    },
    "granite": {
        "architecture": "granite",
        "more_biases": _BIASED,
        "heads": (4, 1),
        "extra": {**_MULTIPLIERS, "attention.scale": 0.2, "expert_count": 0},
    },
    "granite without positions": {
        "architecture": "granite",
        "extra": {"logit_scale": 2.0, "rope.scaling.finetuned": False},
    },
    "minicpm": {"architecture": "minicpm", "extra": _MULTIPLIERS},
    "ernie4_5": {"architecture": "ernie4_5", "tied": True},
    "internlm2": {"architecture": "internlm2"},
    "xverse": {"architecture": "xverse"},
    "arcee": {"architecture": "arcee", "gated": False},
    "exaone": {"architecture": "exaone"},
    "seed_oss": {"architecture": "seed_oss", "biases": True, "pre_norms": ("attn_norm", "post_attention_norm")},
    "pangu-embedded": {"architecture": "pangu-embedded", "biases": True, "more_biases": ("attn_output",)},
    "olmo2": {"architecture": "olmo2", "whole_norms": True, **_AFTER},
    "olmo2 with windows": {
        "architecture": "olmo2",
        "whole_norms": True,
        "n_layers": 4,
        "extra": {**_YARN, "attention.sliding_window": 16, "rope.scaling.attn_factor": 1.2},
        **_AFTER,
    },
    "exaone4": {"architecture": "exaone4", "head_norms": True, **_AFTER},
    "gemma": {"architecture": "gemma", "tied": True},
}
"""Arguments of ``write_gguf``."""

EXPERT_FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3moe, 2 of 8": {"architecture": "qwen3moe", "head_norms": True, "experts": (8, 2, 96)},
    "qwen3moe, 4 of 32": {"architecture": "qwen3moe", "head_norms": True, "experts": (32, 4, 64), "heads": (4, 1)},
    "gpt-oss, 2 of 8": {**_GPT_OSS, "experts": (8, 2, 96), "extra": {**_YARN, "attention.sliding_window": 16}},
    "gpt-oss, 4 of 32": {
        **_GPT_OSS,
        "experts": (32, 4, 64),
        "heads": (4, 1),
        "extra": {"attention.sliding_window": 16, "rope.freq_base_swa": 500.0},
    },
    "llama, 2 of 8": {"architecture": "llama", "experts": (8, 2, 96), "extra": {"feed_forward_length": 96}},
    "olmoe, 4 of 32": {
        "architecture": "olmoe",
        "whole_norms": True,
        "heads": (4, 4),
        "experts": (32, 4, 64),
        "extra": {"feed_forward_length": 64},
    },
    "qwen2moe, 2 of 8, one shared": {
        "architecture": "qwen2moe",
        "biases": True,
        "experts": (8, 2, 96),
        "shared": 128,
        "shared_gate": True,
        "extra": {"expert_shared_feed_forward_length": 128},
    },
    "granitemoe, 2 of 8": {
        "architecture": "granitemoe",
        "experts": (8, 2, 96),
        "extra": {**_MULTIPLIERS, "attention.scale": 0.2, "feed_forward_length": 96},
    },
    "granitemoe, 4 of 32, one shared": {
        "architecture": "granitemoe",
        "experts": (32, 4, 64),
        "shared": 96,
        "extra": {**_MULTIPLIERS, "feed_forward_length": 64, "expert_shared_feed_forward_length": 96},
    },
}
"""The same of models with experts."""
