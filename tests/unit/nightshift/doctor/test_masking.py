"""Secrets are hidden: known ones by their value, others by their looks."""

import pytest

from nightshift.doctor.masking import HIDDEN, Masker, without_password


def test_known_secrets_are_hidden_as_they_are_and_as_urls_spell_them():
    hide = Masker(["p@ss/word"])
    assert hide("it is p@ss/word, or p%40ss%2Fword") == f"it is {HIDDEN}, or {HIDDEN}"


def test_of_two_secrets_the_longer_is_hidden_whole():
    assert Masker(["canary", "canary-and-more"])("canary-and-more") == HIDDEN


def test_a_secret_that_is_too_short_to_know_hides_no_words():
    assert Masker(["an", ""])("an answer") == "an answer"


@pytest.mark.parametrize(
    "text",
    [
        "key ns_live_k3v9x1qz_canary0000000000",
        "secret whsec_canary+/=",
        "AKIACANARYCANARY1234",
        "Authorization: Bearer canary.canary",
        "authorization: basic canarycanary",
        "https://bucket/key?X-Amz-Credential=canary&X-Amz-Signature=canary",
        "https://x/y?sig=canary&se=canary",
        "postgresql://user:canary@db/x",
        "redis://:canary@redis:6379/0",
        "https://canary@host/",
        "host=db password=canary user=x",
        "-----BEGIN PRIVATE KEY-----\ncanary\n-----END PRIVATE KEY-----",
        "sk-canarycanary",
        "hf_canarycanary",
    ],
)
def test_what_looks_like_a_secret_is_hidden(text):
    shown = Masker([])(text)
    assert "canary" not in shown.lower()
    assert HIDDEN in shown


@pytest.mark.parametrize(
    "text",
    [
        "12:00:00 info api  job accepted  job=job_1 rows=3",
        "https://host/path?limit=20&after=job_1",
        "s3://bucket/prefix/*.parquet",
        'nightshift_jobs{kind="bulk",state="queued"} 3.0',
        "mail operators@example.com",
    ],
)
def test_ordinary_text_stays_as_it_is(text):
    assert Masker(["canary"])(text) == text


def test_every_setting_and_variable_with_a_secret_is_known(monkeypatch, tmp_path):
    monkeypatch.setenv("NIGHTSHIFT_DATABASE_URL", "postgresql://u:canary-database@h/x")
    monkeypatch.setenv("NIGHTSHIFT_REDIS_URL", "redis://:canary-redis@h:6379/0")
    monkeypatch.setenv("NIGHTSHIFT_SECRET_KEY", "canary-secret-key")
    monkeypatch.setenv("NIGHTSHIFT_API_KEY", "canary-api-key")
    (tmp_path / "api_key").write_text("canary-key-file")
    (tmp_path / "secret_key").write_text("canary-vault-file\n")
    environment = {
        "AWS_SECRET_ACCESS_KEY": "canary-aws",
        "AWS_SESSION_TOKEN": "canary-session",
        "AWS_ACCESS_KEY_ID": "canary-id",
        "HF_TOKEN": "canary-hub",
        "https_proxy": "http://u:canary-proxy@p:1",
        "AWS_ENDPOINT_URL": "http://u:canary-endpoint@p:1",
        "OTEL_EXPORTER_OTLP_HEADERS": "a=canary-header, b = canary-other%20header",
        "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "x-key=canary-traces",
    }
    hide = Masker.of_installation(tmp_path, environment)
    names = "database redis secret-key api-key key-file vault-file aws session id hub proxy endpoint"
    names += " header other%20header traces"
    for name in names.split():
        assert hide(f"<canary-{name}>") == f"<{HIDDEN}>", name
    assert hide("<canary-other header>") == f"<{HIDDEN}>"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://:canary@host:6379/0", f"redis://{HIDDEN}@host:6379/0"),
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("https://host/key?X-Amz-Signature=canary", "https://host/key"),
        ("redis://[canary", HIDDEN),
    ],
)
def test_a_url_is_shown_without_its_password_and_query(url, shown):
    assert without_password(url) == shown
