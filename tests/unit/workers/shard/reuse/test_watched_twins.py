"""A worker is lost with a shard whose rows wait for one another."""

from nightshift.fleet.workers import ExitCause
from nightshift.lifecycle.recovery import release_worker
from tests.unit.workers.scripted import claim_bulk, plan_bulk, prompt_of
from tests.unit.workers.shard.helpers import CONFIG, INPUT, batch_line, finished
from workers.shard.run_once import WAITING_MAX


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
    with store.transaction() as tx:
        release_worker(tx, claim.lease.worker_id, 20, tx.now(), ExitCause.KILLED)

    claim = claim_bulk(store)
    assert claim.crash_history.is_watched
    run(claim)
    answered = 0
    running = model.wait_for(1)
    while "poison" not in map(prompt_of, running):
        for each in running:
            model.answer(each.id)
        answered += len(running)
        running = model.wait_for(1)

    assert answered > CONFIG.rows_at_risk_max - WAITING_MAX, "its rows begin in order"
    with store.snapshot() as tx:
        [held] = tx.leases.of_worker(claim.lease.worker_id, 10)
    assert poison in held.in_flight
    assert held.crash_count == 1
