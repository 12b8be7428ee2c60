"""Synthetic tasks: a small world whose every target token has a known difficulty."""
