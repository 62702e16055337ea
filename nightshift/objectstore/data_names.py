"""The rule by which objects below a folder are data or not: by their names.

An object is no data if its name, or that of a folder between, begins with `_` or `.`, or if its name is known
to lie beside data; some names are known so only in a folder that the library `datasets` wrote. Every other
object is read, or its job fails by the object's name.
"""

import re
from typing import Final

# `_SUCCESS`, `.crc`, and all that this service writes without rows. `.` and `..` are no names.
_HIDDEN: Final = r"_|\.(?!\.?(?:/|\Z))"
# As Hugging Face's hub and the library `datasets` write them.
_BESIDE_DATA: Final = r"README(?:\.md|\.txt)?|LICENSE(?:\.md|\.txt)?|dataset_infos?\.json|dataset_dict\.json"
DATASET_NAME: Final = "dataset_info.json"
# Anyone may give these names to data. `cache-….arrow` has the rows of a dataset's other files once more.
_BESIDE_A_DATASET: Final = re.compile(r"(?:.*/)?(?:state\.json|cache-[^/]*\.arrow)", re.DOTALL)
_NAME: Final = rf"(?!{_HIDDEN})[^/]+"

DATA_BELOW: Final = rf"(?:{_NAME}/)*(?!(?:{_BESIDE_DATA})\Z){_NAME}"  # a pattern of what follows the folder

_DATA_BELOW: Final = re.compile(DATA_BELOW, re.DOTALL)


def is_data(path_below: str) -> bool:
    """Whether an object at this path below a folder is data."""
    return _DATA_BELOW.fullmatch(path_below) is not None


def is_beside_a_dataset(key: str) -> bool:
    """Whether the object is no data if DATASET_NAME lies in its folder."""
    return _BESIDE_A_DATASET.fullmatch(key) is not None
