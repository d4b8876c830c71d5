"""llama.cpp as a library: its functions, vocabularies, grammars and quantization, for every engine.

What computes rows of logits with it is an engine and stands in ``edge_spec.engines.llama``. The library's functions are
named only in these two packages, and its failures become edge-spec's errors there.
"""
