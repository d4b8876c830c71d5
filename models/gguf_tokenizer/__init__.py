"""The tokenizer of a GGUF: llama.cpp's ids without llama.cpp."""
