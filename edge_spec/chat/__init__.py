"""Conversations: sessions that keep their messages and the models' caches."""

from __future__ import annotations

from edge_spec.chat.conversation import Message
from edge_spec.chat.session import ChatSession

__all__ = ["ChatSession", "Message"]
