"""Checkpoints of the T5 family, the states of their decoders, their costs, and training objectives."""
