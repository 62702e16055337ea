"""The host's cost of a step is measured over the parts that the engine has."""

from __future__ import annotations

import pytest

from benchmarks.host import PARTS, Host, main


@pytest.mark.parametrize("changes", [0, 1])
def test_every_part_of_a_step_has_a_cost_with_and_without_ends_and_admissions(changes: int) -> None:
    cost = Host(num_seqs=3, context=40, changes=changes).measure(steps=4, changes=changes)

    assert list(cost.least) == [*PARTS, "in all"]
    assert all(0 < cost.least[part] <= cost.median[part] for part in cost.least)


def test_the_table_has_a_line_per_size_and_kind_of_step(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--sizes", "2x40,3x64", "--steps", "2", "--changes", "1"])

    lines = capsys.readouterr().out.splitlines()
    assert [line.split("|")[1].strip() for line in lines[1:]] == ["2 x 40"] * 3 + ["3 x 64"] * 3
