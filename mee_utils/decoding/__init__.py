"""Decoding and traces (floor 3)."""
