"""GGUF models on llama.cpp: an engine on the library in ``edge_spec.llama_cpp``."""
