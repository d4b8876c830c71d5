"""The tokenizer of a GGUF, with llama.cpp's ids and without llama.cpp."""
