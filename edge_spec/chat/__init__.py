"""Conversations: sessions that remember what was said, in text and in the models' caches."""

from __future__ import annotations

from edge_spec.chat.messages import Message, Thinking
from edge_spec.chat.reply import ChatReply
from edge_spec.chat.session import ChatSession

__all__ = ["ChatReply", "ChatSession", "Message", "Thinking"]
