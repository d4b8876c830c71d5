"""Serves a model to OpenAI's clients over HTTP. The extra ``serve`` brings the libraries that it needs."""
