"""The architectures of GGUFs that can be written down for ONNX Runtime."""

from __future__ import annotations

from dataclasses import dataclass

from edge_spec.engines.registry import use
from edge_spec.errors import UnsupportedModel
from edge_spec.models.model_file import ModelFile
from edge_spec.models.mtp import as_in_file

__all__ = ["ARCHITECTURES", "Experts", "Kind", "llama_only", "unfit"]


_MULTIPLIERS = ("embedding_scale", "attention.scale", "residual_scale", "logit_scale")
_BIASED = ("attn_output", "ffn_gate", "ffn_up", "ffn_down")


@dataclass(frozen=True, kw_only=True)
class Experts:
    """What distinguishes an architecture whose feed-forward networks are experts, of which each row uses some.

    Attributes:
        of_all: an expert's share is that of its weight in the softmax of all, else of those that are used.
        normalized: shares are divided by the sum of those that are used.
        limit: a gate's input is capped at this, and its other factor is clamped to +- this, plus 1; 0 for no limit.
        alpha: how steep a gate is.
        preferred: an expert's share is its score as a number from 0 to 1, to which a preference of each is added where
            experts are chosen.
        biased: the router and all matrices have biases.
        optional: a file without experts is a model whose rows go through all of a network.
        shared: there may be a further network that every row goes through.
        shared_gate: there is one, and a number of each row's, from 0 to 1, says how much of it is added.
        fused_gate: gate and up of all experts may be one tensor in the file.
    """

    of_all: bool = True
    normalized: bool = False
    limit: float = 0.0
    alpha: float = 1.0
    preferred: bool = False
    biased: bool = False
    optional: bool = False
    shared: bool = False
    shared_gate: bool = False
    fused_gate: bool = False


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What distinguishes an architecture.

    Attributes:
        interleaved: rotary embeddings turn neighboring numbers of a head, else numbers half a head apart.
        unturned_every: every so many layers one has no rotary embedding (NoPE); 0 if all have one.
        unturned_setting: where ``rope.scaling.finetuned`` is false, no layer has a rotary embedding.
        head_norms: queries and keys are normalized head by head.
        whole_norms: queries and keys are normalized, all heads together.
        pre_norms: what attention and the feed-forward network read is normalized.
        post_norms: what they add is normalized before it is added.
        ffn_norm: the name of the norm before the feed-forward network.
        gelu: the gate is a GELU (by tanh), else a SiLU.
        squared: there is no gate; what is positive is squared.
        scales: embeddings are multiplied by the square root of their width.
        multipliers: settings that embeddings, scores, what is added, or logits are multiplied by.
        required: settings that must be there.
        window_every: of so many layers all but the last have a sliding window; 0 if none has.
        own_window_base: layers with a window turn by a base of their own, 10,000 if it is not said.
        windows_scaled: positions in layers with a window are scaled as those in others are.
        temperature: queries grow with their place beyond the original context.
        yarn_settings: YaRN's bounds are those of the file.
        fused_gate: gate and up are one matrix in the file.
        experts: feed-forward networks are experts; None if each row goes through all of a network.
        sinks: each head has a score that belongs to no token.
        biases: matrices, besides those of queries, keys and values, that may have biases.
        other_layers: numbers of layers with which the architecture is another one.
        ignored: settings that llama.cpp ignores as well.
        gated_attention: what attention adds is multiplied by numbers from 0 to 1, which lie beside the queries.
        sections: which pairs of numbers are turned is told by sections, as of models that see.
        recurrent: the kind of its layers without keys and values, a name in ``RECURRENT``; "" if there are none.
        output_norm: the name of the last norm.
        own_output: logits have a matrix of their own; else that of the embeddings may be theirs, too.
        by_layer: heads of keys and values, their width and that of feed-forward networks differ by layer, and the last
            layers may read the keys and values of others.
        attention_scale: scores are multiplied by it; 0 where it is 1 / sqrt(head_dim).
        value_norms: values are normalized head by head, without weights.
        keys_as_values: where a layer has no matrix for values, these are its keys as they come from theirs.
        per_layer: layers may take in numbers of their own for every token, and have a scale.
        soft_cap: logits stay between it and its opposite unless a setting has another bound, or 0 for none.
    """

    interleaved: bool = False
    unturned_every: int = 0
    unturned_setting: bool = False
    head_norms: bool = False
    whole_norms: bool = False
    pre_norms: bool = True
    post_norms: bool = False
    ffn_norm: str = "ffn_norm"
    gelu: bool = False
    squared: bool = False
    scales: bool = False
    multipliers: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    window_every: int = 0
    own_window_base: bool = False
    windows_scaled: bool = False
    temperature: bool = False
    yarn_settings: bool = False
    fused_gate: bool = False
    experts: Experts | None = None
    sinks: bool = False
    biases: tuple[str, ...] = ()
    other_layers: tuple[int, ...] = ()
    ignored: tuple[str, ...] = ()
    gated_attention: bool = False
    sections: bool = False
    recurrent: str = ""
    output_norm: str = "output_norm"
    own_output: bool = False
    by_layer: bool = False
    attention_scale: float = 0.0
    value_norms: bool = False
    keys_as_values: bool = False
    per_layer: bool = False
    soft_cap: float = 0.0


ARCHITECTURES = {
    "llama": Kind(interleaved=True, experts=Experts(normalized=True, optional=True)),
    "mistral3": Kind(interleaved=True, temperature=True, yarn_settings=True, biases=_BIASED),
    "smollm3": Kind(interleaved=True, unturned_every=4),
    "granite": Kind(
        interleaved=True,
        unturned_setting=True,
        multipliers=_MULTIPLIERS,
        required=("logit_scale",),
        biases=_BIASED,
        ignored=("expert_shared_feed_forward_length",),
    ),
    "granitemoe": Kind(
        interleaved=True,
        multipliers=_MULTIPLIERS,
        required=("logit_scale",),
        biases=("attn_output",),
        experts=Experts(normalized=True, shared=True),
    ),
    "minicpm": Kind(
        interleaved=True,
        multipliers=("embedding_scale", "residual_scale", "logit_scale"),
        required=("embedding_scale", "residual_scale", "logit_scale"),
        biases=_BIASED,
    ),
    "ernie4_5": Kind(interleaved=True),
    "internlm2": Kind(interleaved=True, own_output=True),
    "xverse": Kind(interleaved=True, own_output=True),
    "arcee": Kind(interleaved=True, squared=True),
    "qwen2": Kind(),
    "qwen2moe": Kind(own_output=True, experts=Experts(shared=True, shared_gate=True)),
    "exaone": Kind(),
    "seed_oss": Kind(ffn_norm="post_attention_norm"),
    "pangu-embedded": Kind(biases=("attn_output",)),
    "qwen3": Kind(head_norms=True),
    "qwen3moe": Kind(head_norms=True, experts=Experts(normalized=True)),
    "olmo2": Kind(own_output=True, whole_norms=True, pre_norms=False, post_norms=True, window_every=4),
    "olmoe": Kind(own_output=True, whole_norms=True, experts=Experts()),
    "exaone4": Kind(
        head_norms=True,
        pre_norms=False,
        post_norms=True,
        other_layers=(64,),
        ignored=("attention.sliding_window", "attention.sliding_window_pattern"),
    ),
    "gemma": Kind(gelu=True, scales=True),
    "gemma3": Kind(head_norms=True, post_norms=True, gelu=True, scales=True, window_every=6, own_window_base=True),
    "gemma4": Kind(
        head_norms=True,
        post_norms=True,
        gelu=True,
        scales=True,
        window_every=5,
        own_window_base=True,
        by_layer=True,
        attention_scale=1.0,
        value_norms=True,
        keys_as_values=True,
        per_layer=True,
        soft_cap=30.0,
    ),
    "gpt-oss": Kind(
        own_output=True,
        required=("expert_feed_forward_length",),
        ffn_norm="post_attention_norm",
        window_every=2,
        windows_scaled=True,
        biases=("attn_output",),
        sinks=True,
        experts=Experts(of_all=False, limit=7.0, alpha=1.702, biased=True),
    ),
    "lfm2": Kind(head_norms=True, recurrent="convolution", output_norm="token_embd_norm"),
    "lfm2moe": Kind(
        head_norms=True,
        recurrent="convolution",
        output_norm="token_embd_norm",
        required=("expert_feed_forward_length",),
        experts=Experts(normalized=True, preferred=True),
    ),
    "qwen35": Kind(
        head_norms=True,
        ffn_norm="post_attention_norm",
        gated_attention=True,
        sections=True,
        recurrent="delta net",
    ),
    "qwen35moe": Kind(
        head_norms=True,
        ffn_norm="post_attention_norm",
        gated_attention=True,
        sections=True,
        recurrent="delta net",
        experts=Experts(normalized=True, shared=True, shared_gate=True, fused_gate=True),
    ),
    "phi3": Kind(fused_gate=True, ignored=("attention.sliding_window",)),
}
"""Architectures of GGUFs that can be transcribed."""


def unfit(file: ModelFile) -> str | None:
    """Return why a model cannot be transcribed, as a clause without its subject; None if it may be possible."""
    if file.architecture not in ARCHITECTURES:
        known = f"{len(ARCHITECTURES)} others (`edge-spec doctor` lists them)"
        return f"has the architecture {file.architecture!r}, and ONNX Runtime runs {known}"
    if file.n_layers in ARCHITECTURES[file.architecture].other_layers:
        return f"has {file.n_layers} layers, with which the architecture {file.architecture!r} is another one"
    kind = ARCHITECTURES[file.architecture]
    own = {file.n_head_kv[layer] for layer in file.sources} or set(file.n_head_kv)
    heads = own - {0} if kind.recurrent else own
    if (len(heads) != 1 and not kind.by_layer) or file.head_dim_k != file.head_dim_v or file.head_dim_k % 2:
        return "has heads of several shapes"
    odd = next((n for n in heads if not n or file.n_head % n), None)
    return f"has {file.n_head} heads of queries on {odd} of keys and values" if odd is not None else None


def llama_only(file: ModelFile, what: str) -> UnsupportedModel:
    """Return the error that says why a file cannot be transcribed."""
    if file.head is not None:
        return UnsupportedModel(
            as_in_file(file, f"{file.path.name} {what}"), hint="get another head, or run without one"
        )
    return UnsupportedModel(f"{file.path.name} {what}: llama.cpp only", hint=use("llama"))
