"""How a process begins: what it reads is bounded."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from nightshift.process.starting import INTEGER_DIGITS_MAX, starting


@pytest.fixture(autouse=True)
def _restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PYTHONINTMAXSTRDIGITS", "")  # restored to what it was
    monkeypatch.delenv("PYTHONINTMAXSTRDIGITS")
    before = sys.get_int_max_str_digits()
    yield
    sys.set_int_max_str_digits(before)


def test_long_integers_are_refused_in_the_process_and_in_its_children() -> None:
    with starting():
        int("9" * INTEGER_DIGITS_MAX)
        with pytest.raises(ValueError, match="640 digits"):
            int("9" * (INTEGER_DIGITS_MAX + 1))

    child = [sys.executable, "-c", "import sys; print(sys.get_int_max_str_digits())"]
    assert int(subprocess.check_output(child)) == INTEGER_DIGITS_MAX
