"""The meaning of a driver's error: a conflict, an outage, or a fault that stays.

An error that can go away by itself (locked, full, restarting, failing over to another server) is retried. One
that cannot (a table or column that is not there, a privilege that is missing, a file that may not be written
or is none of SQLite's) has the operator as its only remedy.
"""

import sqlite3
from typing import Final

from sqlalchemy import exc

from nightshift.errors import Conflicted, DatabaseUnavailable, DatabaseUnusable, NightshiftError

# SQLSTATEs of PostgreSQL.
READ_ONLY: Final = "25006"  # the server is a standby or kept from writing: clients move to the new primary
_CONFLICTS: Final = frozenset({"40001", "40P01"})  # serialization failure, deadlock
_PERMANENT_STATES: Final = frozenset(
    {
        *("42P01", "42703", "3F000"),  # no such table, column, schema
        *("42883", "42804", "42704", "42P10"),  # another type; no unique index for ON CONFLICT
        "42501",  # insufficient privilege
        *("XX001", "XX002"),  # corrupt
    }
)
# SQLite's primary result codes. Without the extended ones of SQLITE_ERROR, which a retry helps.
_PERMANENT_CODES: Final = frozenset(
    {
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_AUTH,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
    }
)
_PRIMARY: Final = 0xFF
# What a wait helps while another process makes or opens the same file.
_BUSY_CODES: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL})
ACCESS: Final = "see that this user may write to the database's file and to its folder"
_NEXT_STEPS: Final = {
    sqlite3.SQLITE_PERM: ACCESS,
    sqlite3.SQLITE_READONLY: ACCESS,
    sqlite3.SQLITE_CANTOPEN: ACCESS,
    sqlite3.SQLITE_IOERR: f"{ACCESS}, and that its disk works and has room",
    sqlite3.SQLITE_FULL: "make room on the database's disk",
    sqlite3.SQLITE_NOTADB: "name another file in NIGHTSHIFT_DATABASE_URL, or move this one away",
    sqlite3.SQLITE_CORRUPT: "restore a backup",
}


def kind_of(error: exc.DBAPIError) -> type[NightshiftError] | None:
    """The kind of a database's error. None: an error of a value, or of this code."""
    if error.orig is not None and is_permanent(error.orig):
        return DatabaseUnusable
    if isinstance(error, exc.InternalError) and not error.connection_invalidated:
        return None
    if not isinstance(error, exc.OperationalError | exc.InterfaceError | exc.InternalError):
        return None
    return Conflicted if sqlstate(error) in _CONFLICTS else DatabaseUnavailable


def is_permanent(error: BaseException) -> bool:
    """Whether a driver's error stays until someone changes the database."""
    code = getattr(error, "sqlite_errorcode", None)
    if code is not None:
        return code == sqlite3.SQLITE_ERROR or code & _PRIMARY in _PERMANENT_CODES
    return getattr(error, "sqlstate", None) in _PERMANENT_STATES


def is_busy(error: sqlite3.Error) -> bool:
    """Whether another connection is in the way for a moment."""
    return error.sqlite_errorcode & _PRIMARY in _BUSY_CODES


def reason_of(error: exc.DBAPIError) -> str:
    """The driver's first line, with the next step where the cause is known to have one."""
    reason = str(error.orig or error).splitlines()[0]
    code = getattr(error.orig, "sqlite_errorcode", None)
    step = None if code is None else _NEXT_STEPS.get(code & _PRIMARY)
    return reason if step is None else f"{reason}: {step}"


def sqlstate(error: BaseException | None) -> str | None:
    return getattr(getattr(error, "orig", None), "sqlstate", None)
