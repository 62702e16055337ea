"""Failed sign-ins make an address wait, and no other."""

import asyncio
from collections.abc import Iterable

import pytest

from api.page.sessions import OF_ADDRESS, OF_ALL, Attempts
from nightshift.errors import TooManyRequests


def after(failures: Iterable[str], *addresses: str) -> list[bool]:
    """Which of these may try, after failures from those."""

    async def try_all() -> list[bool]:
        attempts = Attempts()
        for address in failures:
            await attempts.failed(address)
        return [await may_try(attempts, address) for address in addresses]

    return asyncio.run(try_all())


async def may_try(attempts: Attempts, address: str) -> bool:
    try:
        await attempts.check(address)
    except TooManyRequests:
        return False
    return True


def test_an_address_waits_after_some_failures_and_another_does_not() -> None:
    few, many = ["10.0.0.1"] * (OF_ADDRESS.amount - 1), ["10.0.0.1"] * OF_ADDRESS.amount

    assert after(few, "10.0.0.1", "10.0.0.2") == [True, True]
    assert after(many, "10.0.0.1", "10.0.0.2") == [False, True]


def test_failures_of_many_addresses_lock_out_those_that_failed_and_no_other() -> None:
    failures = [f"10.0.{n // 250}.{n % 250}" for n in range(OF_ALL.amount)]

    assert after(failures, failures[0], "10.9.9.9") == [False, True]
    assert after(failures[1:], failures[1]) == [True]


@pytest.mark.parametrize(
    ("failed", "tries", "may"),
    [
        ("2001:db8::1", "2001:db8::ffff:1", False),  # of one host
        ("2001:db8::1", "2001:db8:0:1::1", True),
        ("::ffff:10.0.0.1", "10.0.0.1", False),
        ("", "", False),
    ],
)
def test_the_addresses_of_one_host_are_one(failed: str, tries: str, may: bool) -> None:
    assert after([failed] * OF_ADDRESS.amount, tries) == [may]
