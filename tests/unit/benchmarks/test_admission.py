"""Every rule of admission is shown to be worth something, or it would not be there."""

from __future__ import annotations

import pytest

from benchmarks.admission import RULES, Rule, answers, compare, main
from benchmarks.simulation import Row, Simulation


def test_the_same_rows_give_the_same_counts() -> None:
    assert answers(1, 0.2) == answers(1, 0.2)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_can_be_turned_off(rule: Rule) -> None:
    on, off = compare(rule, [1], 0.05)

    assert on.keys() == off.keys()


def test_rows_with_long_answers_first_leave_no_tail() -> None:
    on, off = compare(RULES[0], [1234], 1.0)

    assert on["steps"] == 384, "the longest answer"
    assert off["steps"] > 440


def test_every_row_is_computed_whole() -> None:
    rows = [Row("bulk", [number] * 40, 7, 9) for number in range(20)]

    counts = Simulation(rows, num_blocks=30, slots=8).run()

    assert counts.output_tokens == {"bulk": 140}
    assert len(counts.wait_steps["bulk"]) == 20


def test_the_table_has_a_line_per_rule(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--seeds", "1", "--size", "0.05", "--rules", "longest"])

    lines = capsys.readouterr().out.splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:]] == ["rows that share nothing: longest first"]
