"""Conversations: sessions that remember what was said, as text and in the models' caches."""

from __future__ import annotations

from edge_spec.chat.conversation import Message
from edge_spec.chat.session import ChatSession

__all__ = ["ChatSession", "Message"]
