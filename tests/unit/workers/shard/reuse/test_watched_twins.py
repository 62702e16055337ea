"""A worker is lost with a shard whose rows wait for one another."""

from collections.abc import Sequence
from dataclasses import replace

from nightshift.fleet.workers import ExitCause
from nightshift.jobs import BulkClaim, CrashHistory, ShardState
from nightshift.lifecycle.recovery import release_worker
from nightshift.store.shards.leases import ExpiredLease
from tests.unit.workers.scripted import claim_bulk, plan_bulk, prompt_of
from tests.unit.workers.shard.helpers import CONFIG, INPUT, batch_line, finished, shard_of, wait_until
from tests.unit.workers.shard.reuse.reusing import prompts, reused
from workers.shard import config
from workers.shard.rows.run_once import WAITING_MAX


def lose(store, claim: BulkClaim) -> BulkClaim:
    """The worker is killed. The next lease of its shard."""
    with store.transaction() as tx:
        release_worker(tx, claim.lease.worker_id, 20, tx.now(), ExitCause.KILLED)
    following = claim_bulk(store)
    assert following.crash_history.is_watched
    return following


def with_suspects(store, claim: BulkClaim, rows: Sequence[int]) -> BulkClaim:
    with store.transaction() as tx:
        tx.dead_letters.record_crash(claim.shard.id, rows, ExitCause.ABORTED)
    return replace(claim, crash_history=CrashHistory(2, tuple(rows), frozenset()))


def held(store, claim: BulkClaim) -> ExpiredLease:
    with store.snapshot() as tx:
        [found] = tx.leases.of_worker(claim.lease.worker_id, 10)
    return found


def test_a_shard_is_watched_until_rows_behind_those_that_waited_have_run(
    store, model, write_input, run
) -> None:
    """The row that killed the worker may lie behind all that waited: it is to be journalled again."""
    waiting = 2 * (CONFIG.rows_at_risk_max - WAITING_MAX)  # more than were in the engine, or had results
    assert CONFIG.rows_in_flight_max < waiting < WAITING_MAX
    poison = 1 + waiting
    same = [batch_line(number, "same") for number in range(poison)]
    write_input([*same, batch_line(poison, "poison")])
    plan_bulk(store, INPUT)
    claim = claim_bulk(store)
    lost = run(claim)
    assert sorted(map(prompt_of, model.wait_for(2))) == ["poison", "same"]
    lost.lease_lost()
    finished(lost)

    claim = lose(store, claim)
    watched = run(claim)
    by_prompt = {prompt_of(each): each for each in model.wait_for(2)}
    assert held(store, claim).in_flight == (0, poison)
    model.answer(by_prompt["same"].id)
    wait_until(lambda: watched.rows_finished == poison)
    assert poison in held(store, claim).in_flight
    assert held(store, claim).crash_count == 1


def test_rows_of_a_watched_shard_wait_for_one_another_and_for_others(
    store, objects, model, write_input, run
) -> None:
    write_input([batch_line(0, "one"), *(batch_line(number, "two") for number in range(1, 9))])
    job = plan_bulk(store, INPUT, shards=2)
    claim = claim_bulk(store)
    lost = run(claim)
    model.wait_for(2)
    lost.lease_lost()
    finished(lost)

    runners = [run(lose(store, claim)), run(claim_bulk(store))]
    for each in model.wait_for(2):
        model.answer(each.id)
    for runner in runners:
        finished(runner)
    assert prompts(model) == ["one", "one", "two", "two"], "and again after the loss"
    assert reused(store, job) == 2 * 9 - 2
    assert shard_of(store, job).state is ShardState.DONE


def test_a_suspect_that_waits_keeps_no_other_row_out(store, model, write_input, run, dependencies) -> None:
    """It waits for a row of another shard of its worker, which comes to the engine later."""
    plan_bulk(store, INPUT, shards=2)
    write_input([batch_line(0, "one"), batch_line(1, "two"), batch_line(2, "same")])
    watched = run(with_suspects(store, claim_bulk(store), [0, 1, 2]))
    [one] = model.wait_for(1)
    write_input([batch_line(0, "same")])
    other = run(claim_bulk(store))
    wait_until(lambda: bool(other._rows._leads))  # it is to run, once it may
    assert dependencies.isolation.is_held

    model.answer(one.id)
    [two] = model.wait_for(1)
    assert prompt_of(two) == "two"
    model.answer(two.id)
    [same] = model.wait_for(1)
    assert (prompt_of(same), same.identity.name.split("/")[1]) == ("same", "1")
    assert not dependencies.isolation.is_held
    model.answer(same.id)
    for runner in (watched, other):
        finished(runner)


def test_a_shard_is_cleared_as_its_first_rows_have_answers_of_others(store, model, write_input, run) -> None:
    rows = CONFIG.rows_at_risk_max + 1
    write_input([*(batch_line(number, "same") for number in range(rows)), batch_line(rows, "last")])
    plan_bulk(store, INPUT)
    claim = claim_bulk(store)
    lost = run(claim)
    model.wait_for(1)
    lost.lease_lost()
    finished(lost)

    claim = lose(store, claim)
    watched = run(claim)
    [same] = [each for each in model.wait_for(1) if prompt_of(each) == "same"]
    model.answer(same.id)
    wait_until(lambda: watched.rows_finished == rows)
    [last] = model.wait_for(1)
    wait_until(lambda: held(store, claim).crash_count == 0)
    model.answer(last.id)
    finished(watched)


def test_a_row_that_waits_keeps_its_shard_watched(
    store, model, write_input, run, worker, monkeypatch
) -> None:
    monkeypatch.setattr(config, "WAITING_MAX", 0)
    plan_bulk(store, INPUT, shards=2)
    write_input([batch_line(0, "same")])
    first = run(claim_bulk(store, "worker_b"), dependencies=worker())
    [same] = model.wait_for(1)
    rows = CONFIG.rows_at_risk_max + 1
    write_input([batch_line(0, "same"), *(batch_line(row, f"own {row}") for row in range(1, rows))])
    claim = lose(store, claim_bulk(store))
    model.echo = True
    watched = run(claim, dependencies=worker())
    wait_until(lambda: watched.rows_finished == rows - 1)
    assert held(store, claim).crash_count == 1

    model.answer(same.id)
    for runner in (first, watched):
        finished(runner)
