"""Drafts of tokens that mostly followed the same ones in other outputs of a job."""

from array import array
from itertools import islice

from nightshift_engine.core.speculation.outputs import LONG, JobOutputs

PROMPT = [90, 91, 92, 93, 94, 95]


def learned(*outputs: list[int]) -> JobOutputs:
    job = JobOutputs()
    for output in outputs:
        job.learn(array("q", PROMPT + output), len(PROMPT), is_full=False)
    return job


def tokens_after(job: JobOutputs, output: list[int], most: int = 8) -> list[int]:
    return [token for token, _, _ in islice(job.follow(array("q", PROMPT + output)), most)]


def test_the_beginning_of_an_output_follows_its_prompt() -> None:
    assert tokens_after(learned([1, 2, 3, 4]), []) == [1, 2, 3, 4]


def test_the_token_that_mostly_followed_is_drafted() -> None:
    job = learned([1, 2, 3], [1, 2, 5], [1, 2, 5])

    assert tokens_after(job, [1, 2], most=1) == [5]


def test_a_longer_context_decides_before_a_shorter_one_and_is_told() -> None:
    often, once = [10, 11, 12, 13, 1, 2, 3], [20, 21, 22, 23, 1, 2, 4]
    job = learned(often, often, often, once)

    assert next(job.follow(array("q", PROMPT + once[:-1]))) == (4, True, 1)
    assert next(job.follow(array("q", [*PROMPT, 77, 1, 2]))) == (3, False, 2)


def test_too_short_a_beginning_has_no_draft() -> None:
    assert list(learned([1, 2, 3]).follow(array("q", [1] * (LONG - 1)))) == []


def test_a_full_job_counts_what_it_knows_and_takes_no_more() -> None:
    job = learned([1, 2, 3])
    size = len(job)

    job.learn(array("q", [*PROMPT, 1, 2, 4, 8, 9]), len(PROMPT), is_full=True)
    job.learn(array("q", [*PROMPT, 1, 2, 4]), len(PROMPT), is_full=True)

    assert len(job) == size
    assert tokens_after(job, [1, 2], most=1) == [4]
