"""The rule by which objects below a folder are data or not: by their names.

An object is no data if its name, or that of a folder between, begins with `_` or `.`, or if its name is known
to lie beside data. Every other object is read, or its job fails by the object's name.
"""

import re
from typing import Final

from nightshift.jobs.output_names import OLD_NAMES

# `_SUCCESS`, `.crc`, and all that this service writes without rows. `.` and `..` are no names.
_HIDDEN: Final = r"_|\.(?!\.?(?:/|\Z))"
# What the release before wrote without rows, and what the library `datasets` and Hugging Face's hub write:
# `cache-….arrow` has the rows of the other files once more.
_BESIDE_DATA: Final = (
    rf"{OLD_NAMES}|README(?:\.md|\.txt)?|LICENSE(?:\.md|\.txt)?|dataset_infos?\.json|dataset_dict\.json"
    r"|state\.json|cache-[^/]*\.arrow"
)
_NAME: Final = rf"(?!{_HIDDEN})[^/]+"

DATA_BELOW: Final = rf"(?:{_NAME}/)*(?!(?:{_BESIDE_DATA})\Z){_NAME}"  # a pattern of what follows the folder

_DATA_BELOW: Final = re.compile(DATA_BELOW, re.DOTALL)


def is_data(path_below: str) -> bool:
    """Whether an object at this path below a folder is data."""
    return _DATA_BELOW.fullmatch(path_below) is not None
