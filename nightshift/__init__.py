"""Nightshift: self-hosted batch inference. `nightshift.Client` is loaded when it is used."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nightshift.client import Client

__all__ = ["Client"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from nightshift import client

    return getattr(client, name)
