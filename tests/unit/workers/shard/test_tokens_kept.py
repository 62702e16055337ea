"""Rows in flight: their tokens so far are saved, and the next worker continues them."""

from dataclasses import replace

import pytest

from nightshift.jobs import BulkClaim, Job, ShardState
from nightshift.lifecycle import controls
from nightshift.objectstore import READ_BYTES_MAX, DirectoryStore, ObjectStore
from nightshift.store import Store
from tests.helpers.fakes import claim
from tests.unit.workers.scripted import chat_body, claim_bulk, plan_bulk
from tests.unit.workers.shard.helpers import CONFIG, INPUT, batch_line, finished, shard_of, wait_until
from workers.serving.carry_over import CarryOver, ChoiceSoFar
from workers.serving.inference import Progress
from workers.shard.runner import ShardRunner


def test_draining_saves_tokens_so_far_and_the_next_worker_continues_from_them(
    store, objects, model, write_input, run
) -> None:
    write_input([batch_line(n) for n in range(3)])
    job = plan_bulk(store, INPUT)
    runner = run(claim_bulk(store))
    done, half, untouched = model.wait_for(3)
    model.answer(done.id)
    model.emit(half.id, "RO", [7, 8])
    model.emit(half.id, "W", [9])

    runner.drain()
    finished(runner)

    shard = shard_of(store, job)
    assert (shard.state, shard.attempts, shard.rows_done) == (ShardState.QUEUED, 0, 1)
    assert set(model.cancelled) == {half.id, untouched.id}

    model.submitted.clear()
    run(claim_bulk(store, "worker-2"))
    continued = {inference.identity.name: inference.carry_over for inference in model.wait_for(2)}
    assert continued[half.identity.name] == CarryOver([ChoiceSoFar([7, 8, 9])], model.made_by)
    assert continued[untouched.identity.name] is None


def test_tokens_that_no_step_told_are_saved_too(store, objects, model, write_input, run) -> None:
    write_input([batch_line(0)])
    plan_bulk(store, INPUT)
    runner = run(claim_bulk(store))
    (half,) = model.wait_for(1)
    model.generate(half.id, [7, 8])
    model.generate(half.id, [9])

    runner.drain()
    finished(runner)

    run(claim_bulk(store, "worker-2"))
    (continued,) = model.wait_for(1)
    assert continued.carry_over == CarryOver([ChoiceSoFar([7, 8, 9])], model.made_by)


def test_a_runner_counts_what_its_rows_generate_while_they_run(
    store, objects, model, write_input, run
) -> None:
    write_input([batch_line(0)])
    plan_bulk(store, INPUT)
    runner = run(claim_bulk(store))
    (half,) = model.wait_for(1)

    model.generate(half.id, [7, 8, 9])

    wait_until(lambda: runner.tokens_at_risk() == 3)


def test_a_paused_jobs_rows_are_saved_and_continued_when_it_is_resumed(
    store, objects, model, write_input, run, heartbeat
) -> None:
    write_input([batch_line(n) for n in range(2)])
    job = plan_bulk(store, INPUT)
    runner = run(claim_bulk(store))
    done, half = model.wait_for(2)
    model.answer(done.id)
    model.emit(half.id, "RO", [7, 8])

    with store.transaction() as tx:
        controls.pause(tx, job, tx.now())
    heartbeat.beat()
    heartbeat.beat()  # a repeat changes nothing
    finished(runner)

    shard = shard_of(store, job)
    assert (shard.state, shard.attempts, shard.rows_done) == (ShardState.QUEUED, 0, 1)
    assert claim(store) is None

    model.submitted.clear()
    with store.transaction() as tx:
        assert len(controls.resume(tx, job, tx.now())) == 1
    run(claim_bulk(store, "worker-2"))
    (continued,) = model.wait_for(1)
    assert continued.carry_over == CarryOver([ChoiceSoFar([7, 8])], model.made_by)


def test_a_row_of_several_choices_is_carried_over_choice_by_choice(
    store, objects, model, write_input, run
) -> None:
    write_input([batch_line(0, body=chat_body("row", n=3))])
    plan_bulk(store, INPUT)
    runner = run(claim_bulk(store))
    (inference,) = model.wait_for(1)
    listener = inference.listener
    listener(Progress("a", [1, 2], choice=2))
    listener(Progress("b", [3], choice=0))
    listener(Progress("c", [4], choice=2))

    runner.drain()
    finished(runner)
    run(claim_bulk(store, "worker-2"))
    (continued,) = model.wait_for(1)

    choices = [ChoiceSoFar([3]), ChoiceSoFar(), ChoiceSoFar([1, 2, 4])]
    assert continued.carry_over == CarryOver(choices, model.made_by)


def test_a_carry_over_of_an_earlier_version_is_still_read(store, objects, model, write_input, run) -> None:
    write_input([batch_line(0)])
    plan_bulk(store, INPUT)
    left_behind(store, objects, claim_bulk(store), b'{"row": 0, "output_token_ids": [5, 6]}\n')

    run(claim_bulk(store, "worker-2"))
    (continued,) = model.wait_for(1)

    assert continued.carry_over == CarryOver([ChoiceSoFar([5, 6])])


def test_tokens_that_are_not_those_that_were_saved_are_not_continued(
    store, objects, model, write_input, run, caplog
) -> None:
    """They are tokens, and make sense: only the sha256 knows better."""
    key = drained_with_tokens(store, model, write_input, run)
    data = objects.read(key)
    objects.put(key, data.replace(b"[7, 8]", b"[7, 9]"))
    assert objects.read(key) != data

    run(claim_bulk(store, "worker-2"))
    (begun,) = model.wait_for(1)

    assert begun.carry_over is None
    assert begins_anew(caplog) == [key]


def test_a_carry_over_that_arrives_damaged_is_read_once_more(
    store, model, write_input, run, dependencies, tmp_path
) -> None:
    drained_with_tokens(store, model, write_input, run)
    reads: list[str] = []

    class Damaging(DirectoryStore):
        def read(self, key: str, size_bytes_max: int = READ_BYTES_MAX) -> bytes:
            data = super().read(key, size_bytes_max)
            reads.append(key)
            return data.replace(b"[7, 8]", b"[7, 9]") if len(reads) == 1 else data

    dependencies = replace(dependencies, objects=Damaging(tmp_path / "objects"))
    run(claim_bulk(store, "worker-2"), dependencies=dependencies)
    (continued,) = model.wait_for(1)

    assert continued.carry_over == CarryOver([ChoiceSoFar([7, 8])], model.made_by)
    assert len(reads) == 2


@pytest.mark.parametrize("what", ["gone", "too large", "nonsense"])
def test_a_carry_over_that_cannot_be_read_saves_nothing_and_stops_no_shard(
    store, objects, model, write_input, run, caplog, what
) -> None:
    key = drained_with_tokens(store, model, write_input, run)
    if what == "gone":
        objects.delete(key)
    elif what == "nonsense":
        key = left_behind(store, objects, claim_bulk(store), b'{"row": 0, "output_token_ids": "abc"}\n')

    config = replace(CONFIG, carry_over_bytes_max=10) if what == "too large" else CONFIG
    runner = run(claim_bulk(store, "worker-2"), config)
    (begun,) = model.wait_for(1)
    model.answer(begun.id)
    finished(runner)

    assert begun.carry_over is None
    assert begins_anew(caplog) == [key]


def test_of_rows_with_more_tokens_than_can_be_read_back_those_that_can_are_kept(
    store, objects, model, write_input, run
) -> None:
    write_input([batch_line(n) for n in range(2)])
    job = plan_bulk(store, INPUT)
    runner = run(claim_bulk(store), replace(CONFIG, carry_over_bytes_max=200))
    long, short = model.wait_for(2)
    model.emit(long.id, "…", [7] * 100)
    model.emit(short.id, "RO", [7, 8])
    runner.drain()
    finished(runner)
    key = shard_of(store, job).carry_over_key

    model.submitted.clear()
    run(claim_bulk(store, "worker-2"))

    continued = {inference.identity.name: inference.carry_over for inference in model.wait_for(2)}
    assert len(objects.read(key)) <= 200
    assert continued[long.identity.name] is None
    assert continued[short.identity.name] == CarryOver([ChoiceSoFar([7, 8])], model.made_by)


def test_rows_in_flight_are_saved_regularly_and_continue_after_a_sudden_death(
    store, model, write_input, run
) -> None:
    write_input([batch_line(n) for n in range(2)])
    job = plan_bulk(store, INPUT)
    runner = run(claim_bulk(store), replace(CONFIG, carry_over_interval_s=0.02))
    half, untouched = model.wait_for(2)
    model.emit(half.id, "RO", [7, 8])
    first = saved_after(store, job, None)
    model.emit(half.id, "W", [9])
    saved_after(store, job, first)
    died(store, runner)

    model.submitted.clear()
    run(claim_bulk(store, "worker-2"))
    continued = {inference.identity.name: inference.carry_over for inference in model.wait_for(2)}
    assert continued[half.identity.name] == CarryOver([ChoiceSoFar([7, 8, 9])], model.made_by)
    assert continued[untouched.identity.name] is None


def test_rows_without_new_tokens_are_not_saved_again(store, objects, model, write_input, run) -> None:
    write_input([batch_line(0)])
    job = plan_bulk(store, INPUT)
    runner = run(claim_bulk(store), replace(CONFIG, carry_over_interval_s=0.01))
    (half,) = model.wait_for(1)
    model.emit(half.id, "RO", [7, 8])
    key = saved_after(store, job, None)
    assert not runner.join(0.2)

    assert shard_of(store, job).carry_over_key == key


def test_only_the_last_carry_over_is_kept_and_none_of_a_shard_that_is_done(
    store, objects, model, write_input, run
) -> None:
    write_input([batch_line(0)])
    job = plan_bulk(store, INPUT)
    runner = run(claim_bulk(store), replace(CONFIG, carry_over_interval_s=0.01))
    (row,) = model.wait_for(1)
    key = None
    for token in range(3):
        model.emit(row.id, "x", [token])
        key = saved_after(store, job, key)
        wait_until(lambda key=key: carry_overs(objects) == [key])
    model.answer(row.id)
    finished(runner)

    assert carry_overs(objects) == []


def test_a_row_that_is_drained_twice_before_it_says_anything_keeps_its_tokens(
    store, model, write_input, run
) -> None:
    write_input([batch_line(0)])
    plan_bulk(store, INPUT)
    first = run(claim_bulk(store))
    (row,) = model.wait_for(1)
    model.emit(row.id, "RO", [7, 8])
    first.drain()
    finished(first)
    second = run(claim_bulk(store, "worker-2"))
    model.wait_for(1)
    second.drain()
    finished(second)

    run(claim_bulk(store, "worker-3"))
    (continued,) = model.wait_for(1)

    assert continued.carry_over == CarryOver([ChoiceSoFar([7, 8])], model.made_by)


def test_a_row_not_begun_yet_keeps_the_tokens_it_has_when_others_are_saved(
    store, model, write_input, run
) -> None:
    write_input([batch_line(n) for n in range(2)])
    job = plan_bulk(store, INPUT)
    first = run(claim_bulk(store))
    for row, tokens in zip(model.wait_for(2), ([1], [2, 3]), strict=True):
        model.emit(row.id, "x", tokens)
    first.drain()
    finished(first)
    saved = shard_of(store, job).carry_over_key
    second = run(
        claim_bulk(store, "worker-2"), replace(CONFIG, rows_in_flight_max=1, carry_over_interval_s=0.01)
    )
    (begun,) = model.wait_for(1)
    model.emit(begun.id, "x", [1, 4])
    saved_after(store, job, saved)
    died(store, second)

    run(claim_bulk(store, "worker-3"))

    left = [inference.carry_over for inference in model.wait_for(2)]
    assert left == [CarryOver([ChoiceSoFar(tokens)], model.made_by) for tokens in ([1, 4], [2, 3])]


def test_tokens_that_the_engine_does_not_continue_are_counted(
    store, objects, model, write_input, run
) -> None:
    write_input([batch_line(0)])
    job = plan_bulk(store, INPUT)
    first = run(claim_bulk(store))
    (row,) = model.wait_for(1)
    model.emit(row.id, "RO", [7, 8])
    first.drain()
    finished(first)

    second = run(claim_bulk(store, "worker-2"))
    (row,) = model.wait_for(1)
    model.emit(row.id, "R", [5])  # an engine that continues repeats 7, 8 first
    model.answer(row.id)
    finished(second)

    with store.snapshot() as tx:
        assert tx.jobs.fetch(job.id).tokens_redone == 2
        assert tx.counters.values()["tokens_redone"] == 2


def drained_with_tokens(store, model, write_input, run) -> str:
    """The only row of the only shard has two tokens, and goes back to the queue. Returns where they lie."""
    write_input([batch_line(0)])
    job = plan_bulk(store, INPUT)
    first = run(claim_bulk(store))
    (row,) = model.wait_for(1)
    model.emit(row.id, "RO", [7, 8])
    first.drain()
    finished(first)
    model.submitted.clear()
    key = shard_of(store, job).carry_over_key
    assert key is not None
    return key


def left_behind(store: Store, objects: ObjectStore, claim: BulkClaim, data: bytes) -> str:
    """Handed back by a worker of an earlier release, whose keys did not say what lies there."""
    lease = claim.lease
    key = f"segments/{lease.tenant_id}/{lease.job_id}/000000/t{lease.term}-c000000.jsonl"
    objects.put(key, data)
    with store.transaction() as tx:
        assert tx.leases.hand_back(lease, key)
    return key


def begins_anew(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The carry-overs of which a line says that nothing could be made of them."""
    lines = [vars(record) for record in caplog.records]
    return [line["key"] for line in lines if line.get("action") == "carry_over_unreadable"]


def saved_after(store: Store, job: Job, key: str | None) -> str | None:
    """Wait until the job's only shard has another carry-over than this one. Returns its key."""
    wait_until(lambda: shard_of(store, job).carry_over_key != key)
    return shard_of(store, job).carry_over_key


def carry_overs(objects: ObjectStore) -> list[str]:
    return [found.key for found in objects.list("segments") if "-c" in found.key]


def died(store: Store, runner: ShardRunner) -> None:
    """The worker dies without notice, and recovery has found its lease."""
    runner.lease_lost()
    finished(runner)
    with store.transaction() as tx:
        for lost in tx.leases.of_worker(runner.claim.lease.worker_id, 10):
            tx.leases.requeue(lost)
