"""The engine over one model: `engine.py`."""

from .engine import Engine
from .launched import Runner

__all__ = ["Engine", "Runner"]
