"""Checkpoints of the T5 family, training objectives and the mini models."""
