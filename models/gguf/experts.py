"""Check the numbers of experts of a model: contradictory ones end the process in llama.cpp."""

from __future__ import annotations

__all__ = ["MOST_EXPERTS", "wrong_experts"]

MOST_EXPERTS = 1024
"""The most experts of llama.cpp: ``LLAMA_MAX_EXPERTS`` in its llama-hparams.h."""

_HUNYUAN = frozenset(("hunyuan-dense", "hunyuan_vl"))
"""Architectures in which one expert means a dense model."""


def wrong_experts(
    architecture: str, n_experts: int, n_used: int, *, n_groups: int = 0, n_groups_used: int = 0
) -> str | None:
    """Return what is wrong with numbers of experts, as a clause without its subject; None if they are right.

    Args:
        n_used: in the layer that uses most.
        n_groups, n_groups_used: experts are chosen from some groups of them; 0 where there are none.
    """
    if architecture in _HUNYUAN and n_experts <= 1:
        return None
    if n_experts > MOST_EXPERTS:
        return f"has {n_experts:,} experts, and there may be {MOST_EXPERTS:,}"
    if n_used > n_experts or bool(n_used) != bool(n_experts):
        return f"uses {n_used} of {n_experts} experts"
    if n_groups and n_groups >= n_experts:
        return f"has {n_groups} groups of {n_experts} experts"
    if n_groups > 1 and (n_experts % n_groups or not 0 < n_groups_used < n_groups):
        return f"uses {n_groups_used} of {n_groups} groups of {n_experts} experts"
    return None
