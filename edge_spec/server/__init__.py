"""Serves a model to clients of OpenAI, Anthropic and ollama over HTTP. Needs the extra ``serve``."""
