"""Replies as they are written: the generation lock, streaming text, chat templates, and the session cache."""
