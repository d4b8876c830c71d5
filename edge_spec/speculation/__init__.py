"""Speculative decoding: the language model port, draft trees, the loop, its drafters and their chooser."""
