"""Variables in a plan's job: `{{date}}`, `{{run_id}}` and `{{previous_output}}`.

They are replaced where a run begins, in the job's input, its output and the values of its metadata. In its
template `{{x}}` is a column.
"""

import re
from collections.abc import Mapping
from typing import Final

from nightshift.errors import InvalidRequest

DATE: Final = "date"  # the local day of the instant: 2026-11-30
RUN_ID: Final = "run_id"
PREVIOUS_OUTPUT: Final = "previous_output"  # the output folder of the last run that succeeded
VARIABLES: Final = (DATE, RUN_ID, PREVIOUS_OUTPUT)
OF_OUTPUT: Final = (DATE, RUN_ID)

_VARIABLE: Final = re.compile(r"\{\{([^{}]*)\}\}")


def variables_of(text: str) -> set[str]:
    return {name.strip() for name in _VARIABLE.findall(text)}


def check_variables(text: str, param: str, known: tuple[str, ...] = VARIABLES) -> None:
    """Raises InvalidRequest for a variable that there is not."""
    for name in sorted(variables_of(text) - set(known)):
        braces = ", ".join(f"{{{{{one}}}}}" for one in known)
        raise InvalidRequest(
            f"Invalid '{param}': there is no variable {{{{{name}}}}} here. There are: {braces}.",
            param=param,
            code="unknown_variable",
        )


def check_output(output: str, param: str, *, overwrite: bool, is_daily: bool = True) -> None:
    """Raises InvalidRequest for unknown variables, and for a folder that more than one run would write to.
    `is_daily`: no day has two runs.
    """
    check_variables(output, param, OF_OUTPUT)
    if not overwrite and variables_of(output).isdisjoint(OF_OUTPUT if is_daily else (RUN_ID,)):
        wanted = "{{date}} or {{run_id}}" if is_daily else "{{run_id}}, as a day has several runs,"
        raise InvalidRequest(
            f"Invalid '{param}': a run would overwrite the one before. Put {wanted} into it, or set "
            "'overwrite' to true.",
            param=param,
            code="would_overwrite",
        )


def replaced(text: str, values: Mapping[str, str]) -> str:
    """The text with its variables' values, each taken as it is."""
    return _VARIABLE.sub(lambda match: values[match[1].strip()], text)
