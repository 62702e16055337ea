"""Settings: from the environment and a .env file, with defaults that work on one machine."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from types import UnionType
from typing import Union, get_args, get_origin

import pytest
from pydantic import ValidationError

from nightshift.errors import InvalidSetting
from nightshift.jobs.leases import LeaseConfig
from nightshift.process.settings import (
    EVERY_CONCERN,
    ApiSettings,
    ClientSettings,
    DataSettings,
    LocationSettings,
    QueueSettings,
    RetentionSettings,
    SubmissionSettings,
    WorkerSettings,
    _Settings,
    check_settings,
)

PAGE = (Path(__file__).resolve().parents[4] / "docs/reference/settings.md").read_text(encoding="utf-8")


Setting = Callable[[str, str], None]


@pytest.fixture(autouse=True)
def put(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Setting:
    """Sets a variable, where there are neither the machine's own nor a .env file of the checkout."""
    for name in [name for name in os.environ if name.startswith("NIGHTSHIFT_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return lambda name, value: monkeypatch.setenv(f"NIGHTSHIFT_{name}", value)


def test_the_environment_decides(put: Setting) -> None:
    put("REDIS_URL", "redis://queue.example:6379/1")
    put("PUBLISH_TIMEOUT_S", "0.25")

    assert QueueSettings() == QueueSettings(redis_url="redis://queue.example:6379/1", publish_timeout_s=0.25)


def test_a_dotenv_file_decides_unless_the_environment_does(put: Setting, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(
        "NIGHTSHIFT_BASE_URL=http://from-file\nNIGHTSHIFT_ONLINE_QUEUE_MAX=7\nOTHER=1\n"
    )
    put("ONLINE_QUEUE_MAX", "8")

    assert (ApiSettings().base_url, SubmissionSettings().online_queue_max) == ("http://from-file", 8)


def test_everything_is_in_the_data_directory_but_what_is_said_to_be_elsewhere(tmp_path: Path) -> None:
    settings = DataSettings(data_dir=Path("data"))
    assert settings.resolved_database_url == f"sqlite:///{tmp_path}/data/nightshift.db"
    assert settings.resolved_storage_url == f"file://{tmp_path}/data/objects"
    assert DataSettings().data_dir == Path.home() / ".nightshift"

    elsewhere = DataSettings(database_url="postgresql://db.example/ns", storage_url="s3://bucket/prefix")
    assert elsewhere.resolved_database_url == "postgresql://db.example/ns"
    assert elsewhere.resolved_storage_url == "s3://bucket/prefix"


@pytest.mark.parametrize(
    ("text", "words"),
    [("", ()), ("one", ("one",)), ("one,two", ("one", "two")), (" one , two ,, ", ("one", "two"))],
)
def test_lists_are_written_with_commas(put: Setting, text: str, words: tuple[str, ...]) -> None:
    put("S3_BUCKETS", text)
    put("MODELS", text)

    assert LocationSettings().s3_buckets == words
    assert WorkerSettings().models == words
    assert SubmissionSettings().models == words


def test_ports_are_numbers_and_ranges(put: Setting) -> None:
    assert SubmissionSettings().webhook_port_ranges == (range(80, 81), range(443, 444))
    put("WEBHOOK_PORTS", "443, 8000-8999")
    assert SubmissionSettings().webhook_port_ranges == (range(443, 444), range(8000, 9000))


@pytest.mark.parametrize("text", ["", "https", "443-", "-443", "0", "443,70000", "1-70000"])
def test_ports_that_are_none_are_refused(put: Setting, text: str) -> None:
    put("WEBHOOK_PORTS", text)
    with pytest.raises(InvalidSetting, match=f"NIGHTSHIFT_WEBHOOK_PORTS is '{text}'"):
        SubmissionSettings()


def test_jobs_may_name_no_location_until_the_operator_says_so() -> None:
    assert LocationSettings() == LocationSettings(s3_buckets=(), file_roots=())


def test_a_worker_has_the_leases_it_is_told(put: Setting) -> None:
    assert WorkerSettings().lease == LeaseConfig()
    put("LEASE_TTL_S", "3")
    put("HEARTBEAT_S", "0.5")
    put("LEASE_TRUST_S", "2")

    assert WorkerSettings().lease == LeaseConfig(ttl_s=3, heartbeat_s=0.5, trust_s=2)


def test_a_shard_may_fill_the_engine_unless_it_is_told_otherwise(put: Setting) -> None:
    put("ENGINE_MAX_NUM_SEQS", "256")
    assert WorkerSettings().decoder_rows_in_flight_max == 256
    put("ROWS_IN_FLIGHT_MAX", "64")
    assert WorkerSettings().decoder_rows_in_flight_max == 64


def test_settings_never_change_once_read() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        QueueSettings().publish_timeout_s = 5  # type: ignore[misc]


def test_a_setting_that_makes_no_sense_names_itself(put: Setting) -> None:
    put("ONLINE_SLOTS", "many")

    put("SPOT_PROVIDER", "ibm")

    with pytest.raises(InvalidSetting) as refused:
        WorkerSettings()

    assert refused.value.message == (
        "NIGHTSHIFT_ONLINE_SLOTS is 'many': it should be a valid integer, unable to parse string as an "
        "integer; NIGHTSHIFT_SPOT_PROVIDER is 'ibm': it should be 'auto', 'aws', 'gcp', 'azure' or 'none'"
    )


@pytest.mark.parametrize(
    "setting",
    ["LEASE_TTL_S=20", "LEASE_TRUST_S=5", "HEARTBEAT_S=20", "LEADER_TTL_S=10", "LEADER_TRUST_S=3"],
)
def test_times_by_which_no_lease_and_no_lead_can_be_kept_are_refused(put: Setting, setting: str) -> None:
    name, value = setting.split("=")
    put(name, value)

    with pytest.raises(InvalidSetting, match=f"NIGHTSHIFT_{name}.* must hold, and they are .*{value}"):
        check_settings()


@pytest.mark.parametrize(
    "value",
    ["", "queue:6379", "http://:hush@queue", "redis://", "redis://:hu/sh@queue:1", "redis://queue:hush"],
)
def test_an_address_of_redis_that_cannot_be_is_refused_without_its_password(value: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        QueueSettings(redis_url=value)

    assert refused.value.message.startswith("NIGHTSHIFT_REDIS_URL is not shown here: it should be redis://")
    assert "hu" not in refused.value.message


@pytest.mark.parametrize(
    "value",
    [
        "redis://queue",
        "redis://:p@queue:6379/1",
        "rediss://u:p@[::1]:1/0?x=y",
        "redis+socket:///tmp/s?virtual_host=1",
    ],
)
def test_an_address_of_redis_is_taken_as_it_is(value: str) -> None:
    assert QueueSettings(redis_url=value).redis_url == value


def test_what_is_left_for_bulk_when_a_worker_drains_is_part_of_what_it_has(
    put: Setting,
) -> None:
    put("DRAIN_S", "4")

    with pytest.raises(InvalidSetting, match="NIGHTSHIFT_BULK_DRAIN_S is part of NIGHTSHIFT_DRAIN_S"):
        WorkerSettings()


def _alternatives(annotation: object) -> set[object]:
    """The types in `Annotated[int, …] | None`, without what is said of them; of anything else, itself."""
    parts = (
        get_args(annotation) if isinstance(annotation, UnionType) or get_origin(annotation) is Union else ()
    )
    return {getattr(part, "__origin__", part) for part in parts} or {annotation}


NUMBERS = sorted(
    {
        name.upper()
        for concern in EVERY_CONCERN
        for name, field in concern.model_fields.items()
        if {int, float} & _alternatives(field.annotation)
    }
)
MAY_BE_0 = {
    *("ONLINE_QUEUE_MAX", "ONLINE_QUEUE_TOTAL_MAX", "BULK_JOBS_MAX", "BULK_ROWS_MAX", "BULK_ROWS_TOTAL_MAX"),
    "SCHEDULES_MAX",
    *("SCHEDULER_METRICS_PORT", "WORKER_METRICS_PORT"),
    *("WORKER_PRICE_PER_HOUR_SPOT", "WORKER_PRICE_PER_HOUR_ON_DEMAND"),
    *("CARRY_OVER_INTERVAL_S", "SEGMENT_SPACING_S", "STOP_GRACE_S"),
    *("STEP_TIMEOUT_S", "MODEL_LOAD_TIMEOUT_S", "DEAF_AFTER_S"),
    *("MODEL_RESIDENCY_S", "MODEL_IDLE_S", "OUTPUT_UMASK"),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_no_number_may_be_less_than_nothing_or_without_end_or_0_unless_the_documentation_explains_it(
    put: Setting, name: str
) -> None:
    for value in ("-1", "nan", "inf", "1e300", "9" * 30):
        put(name, value)
        with pytest.raises(InvalidSetting, match=f"^NIGHTSHIFT_{name} is '{value}': it should be "):
            check_settings()

    put(name, "0")
    if name in MAY_BE_0:
        check_settings()
        (row,) = [line for line in PAGE.splitlines() if re.match(rf"\| [^|]*`{name}`[^|]* \|", line)]
        assert "0: " in row
    else:
        with pytest.raises(InvalidSetting, match=f"^NIGHTSHIFT_{name} is '0': it should be greater"):
            check_settings()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("WORKER_METRICS_PORT", "70000"),
        ("WEBHOOK_ALLOW_CIDRS", "10.0.0.0/8,10.0.0.0/99"),
        ("SPOT_METADATA_URL", "http://[::1"),
        ("SPOT_METADATA_URL", "http://127.0.0.1:70000"),
        ("SPOT_METADATA_URL", "169.254.169.254"),
        ("LOG_LEVEL", "loud"),
        ("DATABASE_POOL_SIZE", "loud"),
    ],
)
def test_settings_are_checked_before_anything_is_started(put: Setting, name: str, value: str) -> None:
    check_settings()
    put(name, value)

    with pytest.raises(InvalidSetting, match=f"^NIGHTSHIFT_{name} is "):
        check_settings()


def concerns_under(settings: type[_Settings]) -> list[type[_Settings]]:
    """The classes that no other is made of."""
    below = settings.__subclasses__()
    return [concern for other in below for concern in concerns_under(other)] if below else [settings]


def test_every_class_of_settings_is_checked() -> None:
    assert set(EVERY_CONCERN) == set(concerns_under(_Settings))


def test_settings_can_be_logged_without_giving_secrets_away() -> None:
    shown = [
        DataSettings(database_url="postgresql://u:hush-a@db/ns", secret_key="hush-b"),
        QueueSettings(redis_url="redis://:hush-c@queue/0"),
        ClientSettings(api_key="hush-d"),
    ]

    assert "hush" not in repr(shown)
    assert "hush" not in " ".join(map(str, shown))


@pytest.mark.parametrize(
    ("name", "value", "whole"),
    [
        ("ONLINE_BODY_RETENTION_S", "86401", "ONLINE_JOB_RETENTION_S"),
        ("RESULT_RETENTION_S", "7776001", "BULK_JOB_RETENTION_S"),
        ("EVENT_RETENTION_S", "7776001", "BULK_JOB_RETENTION_S"),
        ("DELIVERY_RETENTION_S", "7776001", "BULK_JOB_RETENTION_S"),
    ],
)
def test_nothing_is_kept_longer_than_the_job_it_goes_with(
    put: Setting, name: str, value: str, whole: str
) -> None:
    put(name, value)

    with pytest.raises(InvalidSetting, match=f"NIGHTSHIFT_{name} ≤ NIGHTSHIFT_{whole} must hold"):
        RetentionSettings()


@pytest.mark.parametrize("value", ["0", "59", "-1", "nan", "inf", "315360001", "a week"])
def test_a_retention_that_makes_no_sense_is_refused_by_name(put: Setting, value: str) -> None:
    put("ONLINE_BODY_RETENTION_S", value)

    with pytest.raises(InvalidSetting, match="NIGHTSHIFT_ONLINE_BODY_RETENTION_S"):
        RetentionSettings()
