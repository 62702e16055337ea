"""A tenant's quotas: how much of the service it may use at a time, or per minute."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final

from nightshift.errors import InvalidRequest

QUOTA_MAX: Final = 2**53 - 1  # JSON and Redis' scripts hold larger integers inexactly


@dataclass(frozen=True, kw_only=True)
class Quotas:
    """Quotas of a tenant. None: no quota of the tenant's own, so the default holds; as a default:
    unlimited.
    """

    requests_per_minute: int | None = None  # requests that ask a model, submit or create
    tokens_per_minute: int | None = None  # tokens of online requests, as estimated when they arrive
    concurrent_requests: int | None = None  # being answered, of each API process, as the next two
    open_streams: int | None = None  # answers as server-sent events
    uploads_in_flight: int | None = None
    queued_rows: int | None = None  # without a result: of bulk jobs and online requests
    queued_tokens: int | None = None
    stored_files: int | None = None
    stored_bytes: int | None = None

    @classmethod
    def from_json(cls, values: Mapping[str, int | None]) -> "Quotas":
        """Quotas by name; names that a later release has stored are ignored."""
        return cls(**{name: values.get(name) for name in QUOTA_NAMES})

    def to_json(self) -> dict[str, int]:
        """The quotas that are set."""
        return {name: value for name in QUOTA_NAMES if (value := getattr(self, name)) is not None}

    def changed(self, changes: Mapping[str, int | None]) -> "Quotas":
        """The quotas with these changes; None: the default holds again."""
        return Quotas.from_json(self.to_json() | dict(changes))

    def over(self, defaults: "Quotas") -> "Quotas":
        """The quotas that hold: these, and the defaults where none is set."""
        own = self.to_json()
        return Quotas.from_json(defaults.to_json() | own) if own else defaults


NO_QUOTAS: Final = Quotas()
QUOTA_NAMES: Final = tuple(field.name for field in fields(Quotas))


def check_quotas(values: Mapping[str, int | None]) -> None:
    """Raises InvalidRequest, naming the quota that does not exist or is less than 1."""
    for name, value in values.items():
        if name not in QUOTA_NAMES:
            raise InvalidRequest(
                f"Unknown quota '{name}'. There are: {', '.join(QUOTA_NAMES)}.",
                param=f"quotas.{name}",
                code="unknown_parameter",
            )
        if value is not None and not 1 <= value <= QUOTA_MAX:
            raise InvalidRequest(
                f"Invalid 'quotas.{name}': it should be from 1 to {QUOTA_MAX}, or null for the default.",
                param=f"quotas.{name}",
            )


def fair_share(limit: int, tenants: int) -> int:
    """The part of each tenant in a common limit that has been reached."""
    return limit // tenants


def may_take(amount: int, *, held: int, free: int) -> bool:
    """Whether a tenant that holds `held` may take `amount` more: at most what is free before it.

    One tenant so leaves half, and n tenants one part in n + 1 (the dynamic threshold of Choudhury and Hahne,
    IEEE/ACM Transactions on Networking 6(2), 1998, with its factor at 1).
    """
    return held + amount <= free
