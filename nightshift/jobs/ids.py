"""Ids: a prefix for the kind, and 24 random letters and digits.

A job's id is `job_abc` on our routes and `batch_abc` on OpenAI's.
"""

import hashlib
import re
import secrets
import string
from typing import Final

ALPHABET: Final = string.digits + string.ascii_lowercase  # sorted
SUFFIX_LENGTH: Final = 24  # 124 bits
COUNTED_LENGTH: Final = 6  # characters that differ among ids made together, which share 93 bits

_ID: Final = re.compile(r"[a-z]{1,16}_[a-z0-9]{1,64}")


def new_id(prefix: str, separator: str = "_") -> str:
    """A new id such as `job_4k…`, or `file-4k…` with another separator."""
    # Drawn once: each draw asks the kernel.
    return prefix + separator + _text(secrets.randbelow(len(ALPHABET) ** SUFFIX_LENGTH), SUFFIX_LENGTH)


def new_ids(prefix: str, count: int) -> list[str]:
    """New ids of things made together, for which the database writes few pages of its index: only their last
    6 characters differ.
    """
    random_length = SUFFIX_LENGTH - COUNTED_LENGTH
    together = _text(secrets.randbelow(len(ALPHABET) ** random_length), random_length)
    return [f"{prefix}_{together}{_text(number, COUNTED_LENGTH)}" for number in range(count)]


def _text(number: int, length: int) -> str:
    places = []
    for _ in range(length):
        number, place = divmod(number, len(ALPHABET))
        places.append(ALPHABET[place])
    return "".join(reversed(places))


def is_id(text: str) -> bool:
    """Whether it has the form of an id; other text is never sent to the database (PostgreSQL rejects NUL)."""
    return _ID.fullmatch(text) is not None


def derived_id(prefix: str, name: str) -> str:
    """The id of something made from `name`, the same at every attempt. `prefix` includes its separator."""
    return prefix + hashlib.sha256(f"{prefix}{name}".encode()).hexdigest()[:SUFFIX_LENGTH]


def batch_id(job_id: str) -> str:
    return "batch_" + job_id.removeprefix("job_")


def job_id_of_batch(batch_id: str) -> str | None:
    """The job id of a batch id; None if the text is not one."""
    return "job_" + batch_id.removeprefix("batch_") if batch_id.startswith("batch_") else None
