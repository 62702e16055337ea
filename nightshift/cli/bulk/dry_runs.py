"""The answer to a dry run, for a terminal."""

import json
from collections.abc import Callable
from typing import Any, Final

from nightshift import endpoints
from nightshift.cli.terminal import rows_text
from nightshift.endpoints.texts.chat import with_text_arguments
from nightshift.endpoints.texts.generation import Conversation, GenerationRequest
from nightshift.errors import InvalidRequest, NightshiftError
from nightshift.jobs import JsonObject

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
    if (prompt := answer.get("prompt")) is not None:
        lines.append(f"  as the model reads it: {json.dumps(prompt, ensure_ascii=False)}")
    if (why_not := answer.get("prompt_error")) is not None:
        lines.append(f"  the text that the model reads cannot be shown: {why_not}")
    return lines


def with_prompt(answer: dict[str, Any], text_of: Callable[[JsonObject], str]) -> dict[str, Any]:
    """The answer with the text that the model's chat template makes of the first request, or the reason why
    there is none. `text_of`: of a conversation as `/v1/tokenize` takes it.
    """
    conversation = _first_conversation(answer)
    if conversation is None:
        return answer
    try:
        return answer | {"prompt": text_of(conversation)}
    except NightshiftError as error:
        return answer | {"prompt_error": error.message}


def _first_conversation(answer: dict[str, Any]) -> JsonObject | None:
    """The first request's conversation; None where it cannot be run, is too long, or has none."""
    body = answer["requests"][0]["body"] if answer["requests"] else None
    try:
        request = None if body is None else endpoints.get(answer["endpoint"]).parse(body)
    except InvalidRequest:  # among the problems
        return None
    prompt = request.prompts_given[0] if isinstance(request, GenerationRequest) else None
    if request is None or not isinstance(prompt, Conversation):
        return None
    return {
        "model": request.model,
        "messages": [*map(with_text_arguments, prompt.messages)],
        "tools": list(prompt.tools) or None,
        "chat_template_kwargs": dict(prompt.arguments) or None,
        "reasoning_effort": prompt.effort,
        "add_generation_prompt": prompt.ending == "answer",
        "continue_final_message": prompt.ending == "open",
    }


def _input_line(input: dict[str, Any]) -> str:
    rows, objects = input["rows_estimated"], input["objects"]
    about = "an unknown number of rows" if rows is None else f"about {rows_text(rows)}"
    least = "" if input["is_whole"] else "at least "
    noun = "object" if objects == 1 else "objects"
    kinds = ", ".join(input["formats"])
    if input["separator"] is not None:
        kinds += f" with {input['separator']!r} between values"
    shown = f" ({kinds})" if kinds else ""
    return f"  {least}{objects} {noun} of {input['size_bytes']} bytes{shown}, {about}"


def _said(problem: dict[str, Any]) -> str:
    message: str = problem["message"]
    return message if problem["is_permanent"] else f"{message.rstrip('.')}; the job would wait and try again"


def _place(problem: dict[str, Any]) -> str:
    if problem["row"] is not None:
        return f"{problem['object']} row {problem['row']}: "
    return f"{problem['object']}: " if problem["object"] else ""
