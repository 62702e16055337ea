"""The order in which waiting sequences are admitted: `queue.py`."""

from .queue import WaitingQueue
from .turns import FairTurns

__all__ = ["FairTurns", "WaitingQueue"]
