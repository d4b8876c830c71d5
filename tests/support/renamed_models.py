"""Small sound models of every family under the name of every other architecture: what a file says and what it holds."""

from __future__ import annotations

from pathlib import Path

from damaged_families import BASES, model_of
from hostile_gguf import HostileGGUF, read_gguf

__all__ = ["N_RENAMED", "renamed"]

_ARCHITECTURES = tuple(
    """
    clip llama llama4 deci falcon grok gpt2 gptj gptneox mpt baichuan starcoder refact bert modern-bert nomic-bert
    nomic-bert-moe neo-bert jina-bert-v2 jina-bert-v3 eurobert bloom stablelm qwen qwen2 qwen2moe qwen2vl qwen3
    qwen3moe qwen3next qwen3vl qwen3vlmoe qwen35 qwen35moe qwen4exp phi2 phi3 phimoe plamo plamo2 plamo3 codeshell
    orion internlm2 minicpm minicpm3 gemma gemma2 gemma3 gemma3n gemma4 gemma4-assistant gemma-embedding
    starcoder2 mamba mamba2 maple jamba falcon-h1 xverse command-r cohere2 cohere2moe dbrx olmo olmo2 olmoe muse-glimmer
    openelm arctic deepseek deepseek2 deepseek2-ocr deepseek32 deepseek4 chatglm glm4 glm4moe glm-dsa
    bitnet t5 t5encoder jais jais2 nemotron nemotron_h nemotron_h_moe exaone exaone4 exaone-moe rwkv6 rwkv6qwen2
    rwkv7 arwkv7 granite granitemoe granitehybrid graniteswitch granite_swa chameleon wavtokenizer-dec plm
    bailingmoe bailingmoe2 bailingmoe3 dots1 dots3note arcee afmoe laguna ernie4_5 ernie4_5-moe hunyuan-moe
    hunyuan-dense hunyuan_vl hy_v3 hy_v4 smollm3 gpt-oss lfm2 lfm2moe dream smallthinker llada llada-moe seed_oss
    grovemoe apertus minimax-01 hrm_text minimax-m2 minimax-m3 cogvlm rnd1 pangu-embedded mistral3 eagle3 dflash
    mistral4 paddleocr mimo2 step35 spark2_5 llama-embed maincoder kimi-linear kimi-k3 glm5-next talkie mellum
    nanbeige qwen3tts pockettts
    """.split()  # noqa: SIM905
)
"""All that llama.cpp knows."""

N_RENAMED = len(BASES) * len(_ARCHITECTURES)
_STRIDE = 7919
"""A prime number: the first cases are of many families and names."""


def renamed(number: int, folder: Path) -> HostileGGUF:
    """The model of a number, below ``N_RENAMED`` another one each; ``said`` names it."""
    base, place = divmod(number * _STRIDE % N_RENAMED, len(_ARCHITECTURES))
    family, name = BASES[base], _ARCHITECTURES[place]
    path = folder / f"{family}.gguf"
    sound = read_gguf(path) if path.exists() else model_of(family, path)
    own = str(sound.values["general.architecture"][1])
    values = {
        f"{name}.{key.removeprefix(f'{own}.')}" if key.startswith(f"{own}.") else key: value
        for key, value in sound.values.items()
    }
    kind, _ = sound.values["general.architecture"]
    return HostileGGUF(values | {"general.architecture": (kind, name)}, sound.tensors, [f"{family} as {name}"])
