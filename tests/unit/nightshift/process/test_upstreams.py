"""Upstreams of the settings: a wrong one is named with its file, line and field, and no key is shown."""

from pathlib import Path

import pytest

from nightshift.errors import ConfigurationError
from nightshift.process.upstreams import Upstream, read_upstreams


def read(text: str, folder: Path) -> list[Upstream]:
    file = folder / "upstreams.yaml"
    file.write_text(text)
    return read_upstreams([str(file)])


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("http://gpu-1:8000/v1", "gpu-1:8000"),
        (" HTTPS://example.com/v1/ ", "example.com"),
        ("http://[::1]:8000/v1", "[::1]:8000"),
        ("http://bücher.example/v1", "bücher.example"),
    ],
)
def test_an_upstream_has_the_name_of_its_host(url: str, name: str) -> None:
    (upstream,) = read_upstreams([url])
    assert (upstream.name, upstream.url) == (name, url.strip().rstrip("/"))


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://gpu-1:8000", "it should say where the routes begin, mostly http://gpu-1:8000/v1"),
        ("ftp://gpu-1/v1", "it should begin with http:// or https:// and a host"),
        ("http:///v1", "it should begin with http:// or https:// and a host"),
        ("http://gpu 1/v1", "it should begin with http:// or https:// and a host"),
        ("http://gpu-1/v1\0", "it should begin with http:// or https:// and a host"),
        ("http://gpu-1:0/v1", "it should begin with http:// or https:// and a host"),
        ("http://gpu-1:99999/v1", "its host or its port is none"),
        ("http://a..b/v1", "its host or its port is none"),
        ("http://[::1/v1", "its host or its port is none"),
        ("gpu-1:8000/v1", "is no file, and no URL with http:// or https://"),
    ],
)
def test_what_is_no_url_of_an_upstream_is_refused(url: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as refusal:
        read_upstreams([url])
    assert refusal.value.param == "UPSTREAMS"


@pytest.mark.parametrize(
    "url",
    [
        "http://user:SECRET@gpu-1/v1",
        "http://user:SEC/RET@gpu-1/v1",
        "http://SECRET@gpu-1/v1",
        "http://gpu-1/v1?key=SECRET",
        "http://gpu-1/v1#SECRET",
    ],
)
def test_a_key_in_a_url_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        read_upstreams([url])
    assert "SEC" not in refusal.value.message
    assert refusal.value.__cause__ is None


def test_a_key_in_place_of_its_variable_is_refused_and_not_shown(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"line 1: upstreams\[0\].api_key_variable") as refusal:
        read("upstreams: [{url: http://a/v1, api_key_variable: sk-SECRET}]", tmp_path)
    assert "SECRET" not in refusal.value.message


BEGINS = "upstreams:\n- url: http://a/v1\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (BEGINS + "  nam: b", r"line 3: upstreams\[0\].nam: there is no such field; there are url, name, "),
        (BEGINS + "- name: b", r"line 3: upstreams\[1\].url: Field required"),
        (BEGINS + "  url: http://b/v1", "line 3: this is no YAML: url is there twice"),
        (BEGINS + "  max_concurrency: 0", "line 3: .*max_concurrency: it should be greater than 0"),
        (BEGINS + "  timeout_s: nan", "line 3: .*timeout_s: it should be"),
        (
            BEGINS + "  models:\n    Qwen2.5-7B:\n      context: 5",
            r"line 5: upstreams\[0\].models.Qwen2.5-7B.context: there is no such field; there are id, kind",
        ),
        (
            BEGINS + "  models:\n    function-caller: {context_length: -5}",
            "line 4: .*models.function-caller.context_length: it should be greater than 0",
        ),
        (BEGINS + "  models: {a: {kind: reranker}}", "line 3: .*models.a.kind: it should be 'decoder', "),
        ("upstreams: []", "line 1: upstreams: "),
        ("upstream: []", "line 1: upstream: there is no such field; there are upstreams"),
        ("", "line 1: upstreams: Field required"),
        ("upstreams: [{url: &a http://a/v1}, {url: *a}]", "aliases are not read"),
        ("upstreams: [{url: http://a/v1}, {url: http://a/v1/}]", "Two upstreams are called 'a'"),
    ],
)
def test_a_wrong_field_is_named_with_its_line(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=says):
        read(text, tmp_path)


def test_a_null_is_a_field_that_is_not_there(tmp_path: Path) -> None:
    (upstream,) = read(
        "upstreams: [{url: http://a/v1, ca_file: null, models: {a: , b: {context_length: null}}}]", tmp_path
    )
    assert upstream.ca_file is None
    assert [model.context_length for model in upstream.models.values()] == [None, None]
