"""Corpora, synthetic tasks, prompts, scores and trivial baselines."""

from .kinds import TASKS
from .loading import Task, load_task

__all__ = ["TASKS", "Task", "load_task"]
