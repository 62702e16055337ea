"""Checks run in turn, each for a bounded time."""

import threading
import time
from functools import partial

import pytest

from nightshift.cli.doctor.examination import Check, Finding, Status, error, examine, ok, skipped, warning
from nightshift.errors import ConfigurationError

HANGING = threading.Event()  # never set


def statuses(*checks: Check, timeout_s: float = 5.0) -> dict[str, Status]:
    return {result.check.id: result.finding.status for result in examine(checks, timeout_s)}


def hang() -> Finding:
    HANGING.wait()
    return ok("")


def fail() -> Finding:
    raise ConfigurationError("set it")


def test_a_check_that_hangs_is_an_error_and_the_next_one_runs():
    seen = statuses(Check("a", "a", hang), Check("b", "b", lambda: ok("")), timeout_s=0.05)
    assert seen == {"a": Status.ERROR, "b": Status.OK}


def test_what_needs_a_check_that_hangs_costs_no_time_of_its_own():
    checks = [Check("a", "a", hang), *(Check(str(n), "", hang, {"a"}) for n in range(1000))]
    began_s = time.monotonic()
    seen = statuses(*checks, timeout_s=0.05)
    assert set(seen.values()) == {Status.ERROR, Status.SKIPPED}
    assert time.monotonic() - began_s < 1000 * 0.05


def test_what_needs_a_check_that_failed_is_skipped_but_not_what_needs_one_that_warns_or_does_not_apply():
    fine = partial(ok, "")
    seen = statuses(
        *(Check("a", "", fail), Check("b", "", fine, {"a"}), Check("c", "", fine, {"b"})),
        *(Check("d", "", partial(skipped, "")), Check("e", "", partial(warning, "", ""))),
        Check("f", "", fine, {"d", "e"}),
    )
    assert [seen[id] for id in "abcf"] == [Status.ERROR, Status.SKIPPED, Status.SKIPPED, Status.OK]


def test_a_slow_check_has_more_time():
    def quick_enough() -> Finding:
        HANGING.wait(0.05)
        return ok("")

    checks = [Check("a", "", quick_enough), Check("b", "", quick_enough, is_slow=True)]
    first, second = examine(checks, timeout_s=0.01)
    assert first.finding.status is Status.ERROR
    assert second.finding.detail in ("", "gave no answer within 0.12 s"), "it had 12 times as long"


def test_our_errors_become_advice():
    (result,) = examine([Check("a", "", fail)])
    assert (result.finding.detail, result.finding.advice) == ("does not work", "set it")


def test_what_the_machine_refuses_is_no_bug_of_the_check():
    def look() -> Finding:
        raise PermissionError(13, "Permission denied", "/srv/other/service.db")

    [result] = examine([Check("a", "", look)], 5.0)
    assert result.finding.status is Status.ERROR
    assert "/srv/other/service.db" in result.finding.detail
    assert "as the user that runs the service" in result.finding.advice


def test_a_bug_in_a_check_is_told_and_stops_no_other():
    def broken() -> Finding:
        raise ZeroDivisionError("by\nzero")

    first, second = examine([Check("a", "", broken), Check("b", "", lambda: ok(""))])
    assert first.finding.detail == "the check itself failed: ZeroDivisionError: by zero"
    assert second.finding.status is Status.OK


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://:canary@host:6379/0", "redis://[hidden]@host:6379/0"),
        ("redis://user:can@ary@host:6379/0", "redis://[hidden]@host:6379/0"),
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("https://host/key?X-Amz-Signature=canary", "https://host/key"),
        ("postgresql://host?password=canary", "postgresql://host"),
    ],
)
def test_a_url_is_shown_without_its_password_and_query(url: str, shown: str) -> None:
    (result,) = examine([Check("a", "", lambda: error(f'at "{url}", no', f"not {url}"))])
    assert (result.finding.detail, result.finding.advice) == (f'at "{shown}", no', f"not {shown}")
