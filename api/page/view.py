"""Types of a view: where it is, which scope it needs, what it shows, what can be done there.

    VIEW = View(path="/ui/workers", title="Workers", template="workers.html", load=load,
                actions=(Action(path="/{worker_id}/drain", act=drain),))

`load` reads what the template shows, in one snapshot. `routes.py` checks session, scope and CSRF token before
either is called.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, TypeVar
from urllib.parse import urlencode

from api.access import Caller
from api.services.services import Services
from nightshift.errors import InvalidRequest
from nightshift.jobs import JsonObject
from nightshift.store import Transaction
from nightshift.tenants.keys import Scope

FILTER_CHARS_MAX: Final = 300

Context = Mapping[str, Any]  # a template's variables
E = TypeVar("E", bound=StrEnum)


@dataclass(frozen=True, kw_only=True)
class PageRequest:
    """A request to a view: `path` and `query` by parameter, and the fields of an action's `form`."""

    caller: Caller
    services: Services
    path: Mapping[str, str]
    query: Mapping[str, str]
    form: Mapping[str, str] = field(default_factory=dict)

    def text(self, name: str) -> str | None:
        """A filter; None if it is empty. Raises InvalidRequest."""
        value = self.query.get(name, "").strip()
        if len(value) > FILTER_CHARS_MAX:
            raise InvalidRequest(f"Invalid '{name}': longer than {FILTER_CHARS_MAX} characters.", param=name)
        return value or None

    def choice(self, name: str, kind: type[E]) -> E | None:
        """A filter that is one of these; None if it is empty. Raises InvalidRequest."""
        value = self.text(name)
        try:
            return None if value is None else kind(value)
        except ValueError as error:
            raise InvalidRequest(
                f"Invalid '{name}': {value!r} is none of {', '.join(kind)}.", param=name
            ) from error

    def query_with(self, **changed: str | None) -> str:
        """`?…` with these parameters changed, or left out where None; empty without any."""
        kept = {name: value for name, value in (dict(self.query) | changed).items() if value}
        return f"?{urlencode(kept)}" if kept else ""


def paged(request: PageRequest, rows: Sequence[Any], per_page: int) -> Context:
    """Variables of a list's links, from rows that were read with one more than a page shows."""
    is_more = len(rows) > per_page
    return {"older": rows[per_page - 1].id if is_more else None, "is_first": request.text("after") is None}


Load = Callable[[Transaction, PageRequest, datetime], Context]
LoadData = Callable[[Transaction, PageRequest, datetime], JsonObject]
ReadObjects = Callable[
    [PageRequest, Context], Context
]  # more variables from those that were loaded; may block


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of an action. Without `location` the view is shown again, with `context` added."""

    message: str
    location: str | None = None  # a path of the page
    context: Context = field(default_factory=dict)


Act = Callable[[PageRequest], Outcome | Awaitable[Outcome]]  # one that is not asynchronous runs in a thread


@dataclass(frozen=True, kw_only=True)
class Action:
    """`path`: below the view's. Raises NightshiftError where it cannot be done, with a message to show."""

    path: str
    act: Act
    scope: Scope = Scope.SUBMIT


@dataclass(frozen=True, kw_only=True)
class View:
    path: str  # in full, with {parameters} as in a route
    title: str
    template: str
    load: Load
    read_objects: ReadObjects | None = None  # after `load`, what is in the object store
    scope: Scope = Scope.READ
    is_in_navigation: bool = True
    section: str | None = None  # the path of the view in the navigation that it belongs to
    actions: tuple[Action, ...] = ()
    data: Mapping[str, LoadData] = field(default_factory=dict)  # JSON for its scripts, by path
