"""Rows in flight: their tokens so far are saved, and the next worker continues them."""

import hashlib
from dataclasses import replace

import pytest

from nightshift.jobs import ShardState, carry_over_key
from nightshift.lifecycle import controls
from nightshift.objectstore import READ_BYTES_MAX, DirectoryStore
from tests.helpers.fakes import claim
from tests.unit.workers.scripted import chat_body, claim_bulk
from tests.unit.workers.shard.helpers import CONFIG, Ground, batch_line, finished, wait_until
from workers.serving.carry_over import CarryOver, ChoiceSoFar
from workers.serving.inference import Progress
from workers.shard.runner import ShardRunner


def left(ground: Ground, *token_ids: int) -> CarryOver:
    """The carry-over of a row with one choice."""
    return CarryOver([ChoiceSoFar([*token_ids])], ground.model.made_by)


def continued(ground: Ground, count: int, worker_id: str = "worker-2") -> dict[str, CarryOver | None]:
    """The carry-overs that the next lease gives the engine, by the name of their row."""
    ground.model.submitted.clear()
    ground.lease(worker_id=worker_id)
    return {inference.identity.name: inference.carry_over for inference in ground.begun(count)}


def drained_with_tokens(ground: Ground) -> str:
    """The only row of the only shard has two tokens, and goes back to the queue. Returns where they lie."""
    first = ground.run(1)
    (row,) = ground.begun(1)
    ground.model.emit(row.id, "RO", [7, 8])
    ground.drain(first)
    key = ground.shard.carry_over_key
    assert key is not None
    return key


def left_behind(ground: Ground, data: bytes) -> str:
    """Handed back by a worker that has written this. Returns where it lies."""
    lease = claim_bulk(ground.store).lease
    key = carry_over_key(lease, 0, 0, hashlib.sha256(data).hexdigest())
    ground.objects.put(key, data)
    with ground.store.transaction() as tx:
        assert tx.leases.hand_back(lease, key)
    return key


def begins_anew(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The carry-overs of which a line says that nothing could be made of them."""
    lines = [vars(record) for record in caplog.records]
    return [line["key"] for line in lines if line.get("action") == "carry_over_unreadable"]


def saved_after(ground: Ground, key: str | None) -> str | None:
    """Waits until the job's only shard has another carry-over than this one. Returns its key."""
    wait_until(lambda: ground.shard.carry_over_key != key)
    return ground.shard.carry_over_key


def carry_overs(ground: Ground) -> list[str]:
    return [info.key for info in ground.objects.list("segments") if "-c" in info.key]


def died(ground: Ground, runner: ShardRunner) -> None:
    """The worker dies without notice, and recovery has found its lease."""
    runner.lease_lost()
    finished(runner)
    with ground.store.transaction() as tx:
        for lost in tx.leases.of_worker(runner.claim.lease.worker_id, 10):
            tx.leases.requeue(lost)


def test_draining_saves_tokens_so_far_and_the_next_worker_continues_from_them(ground: Ground) -> None:
    runner = ground.run(3)
    done, half, untouched = ground.begun(3)
    ground.answer(done)
    ground.model.emit(half.id, "RO", [7, 8])
    ground.model.emit(half.id, "W", [9])
    ground.drain(runner)

    shard = ground.shard
    assert (shard.state, shard.attempts, shard.rows_done) == (ShardState.QUEUED, 0, 1)
    assert set(ground.model.cancelled) == {half.id, untouched.id}
    names = half.identity.name, untouched.identity.name
    assert continued(ground, 2) == dict(zip(names, (left(ground, 7, 8, 9), None), strict=True))


def test_tokens_that_no_step_told_are_counted_as_they_come_and_saved_too(ground: Ground) -> None:
    runner = ground.run(1)
    (half,) = ground.begun(1)
    ground.model.generate(half.id, [7, 8])
    wait_until(lambda: runner.tokens_at_risk() == 2)
    ground.model.generate(half.id, [9])
    ground.drain(runner)

    assert continued(ground, 1) == {half.identity.name: left(ground, 7, 8, 9)}


def test_a_paused_jobs_rows_are_saved_and_continued_when_it_is_resumed(ground: Ground) -> None:
    runner = ground.run(2)
    done, half = ground.begun(2)
    ground.answer(done)
    ground.model.emit(half.id, "RO", [7, 8])
    with ground.store.transaction() as tx:
        controls.pause(tx, ground.recorded, tx.now())
    ground.heartbeat.beat()
    ground.heartbeat.beat()  # a repeat changes nothing
    finished(runner)

    shard = ground.shard
    assert (shard.state, shard.attempts, shard.rows_done) == (ShardState.QUEUED, 0, 1)
    assert claim(ground.store) is None
    with ground.store.transaction() as tx:
        assert len(controls.resume(tx, ground.recorded, tx.now())) == 1
    assert continued(ground, 1) == {half.identity.name: left(ground, 7, 8)}


def test_a_row_of_several_choices_is_carried_over_choice_by_choice(ground: Ground) -> None:
    runner = ground.run([batch_line(0, body=chat_body("row", n=3))])
    (inference,) = ground.begun(1)
    for progress in (Progress("a", [1, 2], 2), Progress("b", [3], 0), Progress("c", [4], 2)):
        inference.listener(progress)
    ground.drain(runner)

    choices = [ChoiceSoFar([3]), ChoiceSoFar(), ChoiceSoFar([1, 2, 4])]
    assert [*continued(ground, 1).values()] == [CarryOver(choices, ground.model.made_by)]


def test_a_returned_row_begins_again_with_its_text_and_with_how_often_it_broke_off(ground: Ground) -> None:
    ground.run(1)
    (row,) = ground.begun(1)
    ground.model.running.clear()
    so_far = ChoiceSoFar(text=" So", tokens_without_ids=2)
    row.listener(Progress(failed="its upstream is away", is_returned=True, breaks=2, so_far=so_far))
    (again,) = ground.begun(1)

    assert again.carry_over == CarryOver([so_far], ground.model.made_by)
    assert again.breaks == 2


@pytest.mark.parametrize("spoiled", ["other tokens", "gone", "too large", "of no known form"])
def test_a_carry_over_that_cannot_be_used_saves_nothing_and_stops_no_shard(
    ground: Ground, caplog: pytest.LogCaptureFixture, spoiled: str
) -> None:
    """Other tokens make sense, too: only the sha256 knows better."""
    key, config = drained_with_tokens(ground), CONFIG
    if spoiled == "gone":
        ground.objects.delete(key)
    elif spoiled == "too large":
        config = replace(CONFIG, carry_over_bytes_max=10)
    elif spoiled == "other tokens":
        ground.objects.put(key, ground.objects.read(key).replace(b"[7, 8]", b"[7, 9]"))
    else:
        key = left_behind(ground, b'{"row": 0, "choices": "abc"}\n')
    runner = ground.lease(config, "worker-2")
    (begun,) = ground.begun(1)
    ground.answer(begun)
    finished(runner)

    assert begun.carry_over is None
    assert begins_anew(caplog) == [key]


def test_a_carry_over_that_arrives_damaged_is_read_once_more(ground: Ground, tmp_path) -> None:
    drained_with_tokens(ground)
    reads: list[str] = []

    class Damaging(DirectoryStore):
        def read(self, key: str, size_bytes_max: int = READ_BYTES_MAX) -> bytes:
            data = super().read(key, size_bytes_max)
            reads.append(key)
            return data.replace(b"[7, 8]", b"[7, 9]") if len(reads) == 1 else data

    ground.lease(worker_id="worker-2", objects=Damaging(tmp_path / "objects"))
    (begun,) = ground.begun(1)

    assert begun.carry_over == left(ground, 7, 8)
    assert len(reads) == 2


def test_of_rows_with_more_tokens_than_can_be_read_back_those_that_can_are_kept(ground: Ground) -> None:
    runner = ground.run(2, replace(CONFIG, carry_over_bytes_max=200))
    long, short = ground.begun(2)
    ground.model.emit(long.id, "…", [7] * 100)
    ground.model.emit(short.id, "RO", [7, 8])
    ground.drain(runner)

    assert len(ground.objects.read(ground.shard.carry_over_key)) <= 200
    names = long.identity.name, short.identity.name
    assert continued(ground, 2) == dict(zip(names, (None, left(ground, 7, 8)), strict=True))


def test_rows_in_flight_are_saved_regularly_and_continue_after_a_sudden_death(ground: Ground) -> None:
    runner = ground.run(2, replace(CONFIG, carry_over_interval_s=0.02))
    half, untouched = ground.begun(2)
    ground.model.emit(half.id, "RO", [7, 8])
    first = saved_after(ground, None)
    ground.model.emit(half.id, "W", [9])
    saved_after(ground, first)
    died(ground, runner)

    names = half.identity.name, untouched.identity.name
    assert continued(ground, 2) == dict(zip(names, (left(ground, 7, 8, 9), None), strict=True))


def test_rows_without_new_tokens_are_not_saved_again(ground: Ground) -> None:
    runner = ground.run(1, replace(CONFIG, carry_over_interval_s=0.01))
    (half,) = ground.begun(1)
    ground.model.emit(half.id, "RO", [7, 8])
    key = saved_after(ground, None)
    assert not runner.join(0.2)

    assert ground.shard.carry_over_key == key


def test_only_the_last_carry_over_is_kept_and_none_of_a_shard_that_is_done(ground: Ground) -> None:
    runner = ground.run(1, replace(CONFIG, carry_over_interval_s=0.01))
    (row,) = ground.begun(1)
    key = None
    for token in range(3):
        ground.model.emit(row.id, "x", [token])
        key = saved_after(ground, key)
        wait_until(lambda key=key: carry_overs(ground) == [key])
    ground.answer(row)
    finished(runner)

    assert carry_overs(ground) == []


def test_a_row_that_is_drained_twice_before_it_says_anything_keeps_its_tokens(ground: Ground) -> None:
    drained_with_tokens(ground)
    second = ground.lease(worker_id="worker-2")
    ground.begun(1)
    ground.drain(second)

    assert [*continued(ground, 1, "worker-3").values()] == [left(ground, 7, 8)]


def test_a_row_not_begun_yet_keeps_the_tokens_it_has_when_others_are_saved(ground: Ground) -> None:
    first = ground.run(2)
    for row, tokens in zip(ground.begun(2), ([1], [2, 3]), strict=True):
        ground.model.emit(row.id, "x", tokens)
    ground.drain(first)
    saved = ground.shard.carry_over_key
    one_by_one = replace(CONFIG, rows_in_flight_max=1, carry_over_interval_s=0.01)
    second = ground.lease(one_by_one, "worker-2")
    (begun,) = ground.begun(1)
    ground.model.emit(begun.id, "x", [1, 4])
    saved_after(ground, saved)
    died(ground, second)

    assert [*continued(ground, 2, "worker-3").values()] == [left(ground, 1, 4), left(ground, 2, 3)]


def test_tokens_that_the_engine_does_not_continue_are_counted(ground: Ground) -> None:
    drained_with_tokens(ground)
    second = ground.lease(worker_id="worker-2")
    (row,) = ground.begun(1)
    ground.model.emit(row.id, "R", [5])  # an engine that continues repeats 7, 8 first
    ground.answer(row)
    finished(second)

    assert ground.recorded.tokens_redone == 2
    with ground.store.snapshot() as tx:
        assert tx.counters.values()["tokens_redone"] == 2
