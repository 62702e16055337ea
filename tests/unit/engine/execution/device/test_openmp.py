"""How OpenMP's threads wait in a worker."""

import pytest

from nightshift_engine.execution.device.openmp import SPIN_VARIABLES, limit_spinning


@pytest.mark.parametrize("name", SPIN_VARIABLES)
def test_what_the_operator_says_about_waiting_stays(name: str) -> None:
    environment = {name: "active"}
    limit_spinning(environment)
    assert environment == {name: "active"}
