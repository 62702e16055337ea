"""Nightshift: self-hosted batch inference. Its clients are loaded when they are used."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nightshift.client import AsyncClient, Client

__all__ = ["AsyncClient", "Client"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from nightshift import client

    return getattr(client, name)
