"""One entity tag is one, however a server or a proxy writes it."""

import pytest

from nightshift.objectstore.s3_answers import normalised_etag, sent_etag

TAG = "5d41402abc4b2a76b9719d911017c592-3"


@pytest.mark.parametrize("form", ["{}", '"{}"', 'W/"{}"', "W/{}", ' "{}" ', 'W/ "{}"', "\t{}\n"])
def test_a_tag_is_held_and_sent_in_one_form(form: str) -> None:
    assert normalised_etag(form.format(TAG)) == TAG
    assert sent_etag(form.format(TAG)) == f'"{TAG}"'
