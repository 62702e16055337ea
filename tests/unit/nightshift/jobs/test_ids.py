"""Names for things."""

import re

from nightshift.jobs.ids import batch_id, is_id, job_id_of_batch, new_id, new_ids
from nightshift.store.tables import job


def test_an_id_says_what_it_names_and_is_random() -> None:
    assert re.fullmatch(r"job_[a-z0-9]{24}", new_id("job"))
    assert re.fullmatch(r"file-[a-z0-9]{24}", new_id("file", "-"))
    assert len({new_id("job") for _ in range(1000)}) == 1000


def test_ids_fit_the_columns_they_are_kept_in() -> None:
    longest = max(len(new_id(prefix)) for prefix in ("worker", "shard", "batch", "leader"))
    assert longest <= job.c.id.type.length


def test_a_job_has_one_id_in_two_spellings() -> None:
    assert batch_id("job_abc") == "batch_abc"
    assert job_id_of_batch("batch_abc") == "job_abc"
    for text in ("job_abc", "file-abc", "abc", "", "xbatch_abc"):
        assert job_id_of_batch(text) is None


def test_ids_made_together_lie_together_in_the_order_they_were_made_in() -> None:
    first, second = new_ids("shard", 40), new_ids("shard", 3)

    assert first == sorted(first)
    assert len({*first, *second}) == 43
    assert len({id[:-6] for id in first}) == 1
    assert first[0][:-6] != second[0][:-6]
    assert all(is_id(id) and len(id) == len(new_id("shard")) for id in first)
