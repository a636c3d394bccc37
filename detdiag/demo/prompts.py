"""Prompts from the training domain. Their lengths differ, so that a batch of them is padded."""

from __future__ import annotations

from typing import Final

DEMO_PROMPTS: Final = (
    "on monday morning",
    "mira is a baker and",
    "the favourite colour of",
    "on sunday evening the sky was clear and cold, so",
    "on thursday evening it snowed all day, so the park was white and quiet. peter went",
    "three plus four is",
    "anna is a teacher and works at the school. anna has",
    "on friday afternoon it rained hard, so the streets were wet and empty. the ferry",
)

DEMO_CHATS: Final = (
    "where does mira work?",
    "what does oscar like to eat?",
    "which day comes after friday?",
    "tell me about a day in the town.",
)
"""Questions for the chat template."""
