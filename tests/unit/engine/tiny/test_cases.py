from itertools import combinations, product

from tests.unit.engine.tiny.cases import pairwise

PARAMETERS = ("abc", range(6), [False, True], ["x"])


def test_any_two_values_of_two_parameters_meet_in_a_case() -> None:
    cases = pairwise(*PARAMETERS)

    for one, other in combinations(range(len(PARAMETERS)), 2):
        met = {(case[one], case[other]) for case in cases}
        assert met == {*product(PARAMETERS[one], PARAMETERS[other])}


def test_there_are_far_fewer_cases_than_combinations_and_always_the_same() -> None:
    cases = pairwise(*PARAMETERS)

    assert len(cases) <= 20 < 3 * 6 * 2
    assert cases == pairwise(*PARAMETERS)
