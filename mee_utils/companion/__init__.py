"""What `make` does: profiles, experiments, measurements, notebooks, statements and the results they store.

Nothing in the library imports it. Names are loaded when they are first used.
"""

from importlib import import_module

from ..common.extras import needs_extra

_HOME = {
    "Experiment": "experiment",
    "draw_settled": "drawing",
    "draw_confidence": "drawing",
    "draw_predictions": "drawing",
    "draw_reliability": "drawing",
    "draw_front": "drawing",
}

__all__ = sorted(_HOME)


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with needs_extra("notebooks"):
        return getattr(import_module(f".{_HOME[name]}", __name__), name)
