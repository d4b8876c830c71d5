"""llama.cpp as a library: its functions, vocabularies, grammars and quantization, for every engine.

The engine that computes logits with it is ``edge_spec.engines.llama``. The library's functions are
named only in these two packages, and its failures become edge-spec's errors there.
"""
