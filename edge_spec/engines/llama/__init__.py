"""GGUF models on llama.cpp.

The library's low-level functions are named only in this package, and its failures become edge-spec's errors here.
"""
