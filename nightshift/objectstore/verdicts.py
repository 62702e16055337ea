"""The reaction to an object store's error, for planning, running and assembly."""

import re
from typing import Final, Literal

from nightshift.errors import (
    MESSAGE_BYTES_MAX,
    CredentialsRefused,
    NightshiftError,
    StorageDenied,
    StorageError,
    StorageUnavailable,
    shortened,
)
from nightshift.jobs import InputError
from nightshift.objectstore.objects import ObjectChanged

# URLs (with the passwords in them), the pools that urllib3 names, and IP addresses.
_ADDRESS: Final = re.compile(
    r"""\bhttps?://[^\s"'<>]+|\bhost='[^']*'(, port=\d+)?|(?<![/\w.-])\d{1,3}(\.\d{1,3}){3}(:\d+)?\b"""
)

IMAGE: Final = "image"  # the `param` of a fault of the store of an image that a row names

StorageReaction = Literal["retry", "pause", "fail"]


def storage_verdict(error: NightshiftError, *, in_our_store: bool) -> StorageReaction:
    """`retry` with a growing delay, `pause` until the operator acts, or `fail` with the reason to the job's
    owner.

    A refusal is the operator's to correct in the service's own store, and the owner's at a location that the
    job named. Refused credentials are always the operator's.
    """
    if isinstance(error, StorageUnavailable):
        return "retry"
    if isinstance(error, CredentialsRefused):
        return "pause"
    if in_our_store and isinstance(error, StorageDenied):
        return "pause"
    return "fail"


def as_input_error(error: NightshiftError, param: str) -> InputError:
    """An error about an input or an output, as the job's owner sees it."""
    if isinstance(error, ObjectChanged):
        return InputError("input_changed", f"The input was replaced: {error.message}.", param="input")
    message = without_addresses(error.message)
    return InputError(error.code or "unreadable_input", message, param=error.param or param)


def as_fault(error: NightshiftError, param: str, *, in_our_store: bool) -> InputError:
    """An error that is tried again, as the job's owner sees it. Our own store's names no object."""
    if in_our_store and isinstance(error, StorageError):
        return InputError(error.code or "storage_error", _of_our_store(error), param=param)
    return as_input_error(error, param)


def input_fault(error: NightshiftError, param: str, *, in_our_store: bool) -> InputError:
    """The reason why an input is read again, or an image of a row (`param` is IMAGE), as a sentence."""
    subject = "An image" if param == IMAGE else "The input"
    fault = as_fault(error, param, in_our_store=in_our_store)
    return _in_a_sentence(f"{subject} cannot be read at present", fault)


def results_fault(error: NightshiftError) -> InputError:
    """The reason why results are stored, or read, again, as a sentence."""
    return _in_a_sentence("Results cannot be kept at present", as_fault(error, "", in_our_store=True))


def without_addresses(text: str) -> str:
    """The text without the addresses of the service's surroundings, which libraries quote."""
    return _ADDRESS.sub("…", text)


def _in_a_sentence(beginning: str, fault: InputError) -> InputError:
    message = shortened(f"{beginning}: {fault.message.rstrip('.')}", MESSAGE_BYTES_MAX)
    return InputError(fault.code, message, param=fault.param or None)


def _of_our_store(error: StorageError) -> str:
    if isinstance(error, CredentialsRefused):
        return "the service's own store does not accept the service's credentials"
    if isinstance(error, StorageDenied):
        return "the service's own store refuses the service"
    return "the service's own store cannot be reached or is failing"
