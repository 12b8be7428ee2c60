"""Corpora, made data, prompts and scores (floor 1)."""

from .loading import Task, load_task

__all__ = ["Task", "load_task"]
