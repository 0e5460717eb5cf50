"""Models behind a chat completions API, as OpenAI and many servers of open models speak it."""

from __future__ import annotations

from holdfast.models.chat_completions.provider import OpenAICompatible

__all__ = ["OpenAICompatible"]
