"""A tenant's quotas: its own, else the defaults."""

import pytest

from api.bodies.tenants import QuotasBody, QuotasObject
from nightshift.errors import InvalidRequest
from nightshift.process.settings import QuotaSettings
from nightshift.tenants.quotas import QUOTA_MAX, QUOTA_NAMES, Quotas, check_quotas


def test_a_tenants_own_quotas_come_before_the_defaults_and_are_stored_by_name() -> None:
    defaults = Quotas(requests_per_minute=10, open_streams=2)
    own = Quotas(requests_per_minute=99)

    assert own.over(defaults) == Quotas(requests_per_minute=99, open_streams=2)
    assert Quotas.from_json(own.to_json() | {"of_a_later_release": 1}) == own
    changed = defaults.changed({"open_streams": None, "tokens_per_minute": 5})
    assert changed == Quotas(requests_per_minute=10, tokens_per_minute=5), "None brings the default back"


@pytest.mark.parametrize(
    ("quotas", "param"),
    [
        ({"open_streams": 0}, "quotas.open_streams"),
        ({"open_streams": -1}, "quotas.open_streams"),
        ({"open_streams": QUOTA_MAX + 1}, "quotas.open_streams"),
        ({"streams": 1}, "quotas.streams"),
    ],
)
def test_a_quota_less_than_1_or_of_no_such_name_is_refused_by_name(
    quotas: dict[str, int | None], param: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_quotas(quotas)

    assert refused.value.param == param


def test_every_quota_is_a_setting_and_on_the_wire() -> None:
    names = set(QUOTA_NAMES)

    assert {name.removeprefix("quota_") for name in QuotaSettings.model_fields} == names
    assert set(QuotasBody.model_fields) == names
    assert set(QuotasObject.model_fields) == names
