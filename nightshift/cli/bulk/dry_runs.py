"""The answer to a dry run, for a terminal."""

import json
from typing import Any, Final

from nightshift.cli.terminal import rows_text

EXIT_REFUSED: Final = 1  # also where the job would wait
EXIT_ROWS_FAIL: Final = 3  # as `run --wait` exits when rows failed, …
EXIT_JOB_FAILS: Final = 4  # … and when the job did


def exit_code(answer: dict[str, Any]) -> int:
    """The code that `run --wait` would exit with, as far as the first rows tell."""
    if not answer["would_be_accepted"]:
        return EXIT_REFUSED
    of_the_job = [problem for problem in answer["problems"] if problem["row"] is None]
    if of_the_job:
        would_fail = any(problem["is_permanent"] for problem in of_the_job)
        return EXIT_JOB_FAILS if would_fail else EXIT_REFUSED
    return EXIT_ROWS_FAIL if answer["rows_with_problems"] else 0


def lines_of(answer: dict[str, Any]) -> list[str]:
    """The answer in words."""
    lines = [
        f"dry run: model {answer['model'] or 'unknown'}, priority {answer['priority']}; nothing was submitted"
    ]
    if answer["input"] is not None:
        lines.append(_input_line(answer["input"]))
    if answer["existing_job_id"] is not None:
        lines.append(f"  it was submitted before: {answer['existing_job_id']}")
    if answer["refusal"] is not None:
        lines.append(f"  it would be refused now: {answer['refusal']['message']}")
    if answer["is_cut_off"]:
        lines.append("  reading the input took too long for a dry run; not all of it was looked at")
    lines.append(
        f"  {rows_text(answer['rows_checked'])} checked, {answer['rows_with_problems']} with a problem"
    )
    lines += [f"  {_place(problem)}{_said(problem)}" for problem in answer["problems"]]
    for request in answer["requests"][:1]:
        body = request["body_start"] or json.dumps(request["body"], ensure_ascii=False)
        lines.append(f"  the first request: {body}")
    return lines


def _input_line(input: dict[str, Any]) -> str:
    rows, objects = input["rows_estimated"], input["objects"]
    about = "an unknown number of rows" if rows is None else f"about {rows_text(rows)}"
    least = "" if input["is_whole"] else "at least "
    noun = "object" if objects == 1 else "objects"
    return f"  {least}{objects} {noun} of {input['size_bytes']} bytes, {about}"


def _said(problem: dict[str, Any]) -> str:
    message: str = problem["message"]
    return message if problem["is_permanent"] else f"{message.rstrip('.')}; the job would wait and try again"


def _place(problem: dict[str, Any]) -> str:
    if problem["row"] is not None:
        return f"{problem['object']} row {problem['row']}: "
    return f"{problem['object']}: " if problem["object"] else ""
