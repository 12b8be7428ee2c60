"""Checkpoints of the T5 family, training objectives and the mini models."""

from .loading import Model, load_model

__all__ = ["Model", "load_model"]
