"""Tokens: protocols of tokenizers, and the bytes that tokens stand for."""
