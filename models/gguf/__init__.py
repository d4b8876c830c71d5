"""GGUF files: a reader of headers that trusts no number in them, and the facts about the model."""
