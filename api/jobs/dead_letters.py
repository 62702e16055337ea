"""/v1/dead_letters: rows that crashed workers and are not run again."""

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response

from api.access import Caller
from api.bodies.objects import DeadLetterObject, DeadLetterPage
from api.dependencies import CallerDep, ListingDep, ServicesDep
from nightshift.errors import Conflict, NotFound
from nightshift.jobs import JsonObject
from nightshift.jobs.dead_letters import DeadLetter, DeadLetterState
from nightshift.lifecycle.replay import replay
from nightshift.store import Transaction

router = APIRouter(prefix="/v1/dead_letters", tags=["Jobs"])


@router.get("", summary="List dead letters, the latest first", response_model=DeadLetterPage)
def list_dead_letters(
    services: ServicesDep,
    caller: CallerDep,
    listing: ListingDep,
    status: DeadLetterState | None = None,
    job_id: str | None = None,
) -> Response:
    with services.store.snapshot() as tx:
        rows = tx.dead_letters.list(
            caller.tenant_id,
            limit=listing.limit + 1,
            after=listing.start(lambda id: get_letter(tx, caller, id, param="after")),
            state=status,
            job_id=job_id,
        )
    return JSONResponse(listing.json([_letter_json(row) for row in rows]))


@router.get("/{letter_id}", summary="Describe a dead letter", response_model=DeadLetterObject)
def get_dead_letter(letter_id: str, services: ServicesDep, caller: CallerDep) -> Response:
    with services.store.snapshot() as tx:
        return JSONResponse(_letter_json(get_letter(tx, caller, letter_id)))


@router.post(
    "/{letter_id}/replay",
    summary="Submit the row again, as an online job of its own",
    response_model=DeadLetterObject,
)
def replay_dead_letter(letter_id: str, services: ServicesDep, caller: CallerDep) -> Response:
    with services.store.snapshot() as tx:
        row = _undecided(tx, caller, letter_id)
    try:
        submitted = replay(row, services.store, services.submitter, services.sources)
    except Conflict:
        with services.store.snapshot() as tx:
            _undecided(tx, caller, letter_id)  # the error names the decision
        raise
    services.ring_sender.send(submitted.rings)
    with services.store.snapshot() as tx:
        return JSONResponse(_letter_json(get_letter(tx, caller, letter_id)))


@router.post(
    "/{letter_id}/discard",
    summary="Take it off the list of those that wait for a decision",
    response_model=DeadLetterObject,
)
def discard_dead_letter(letter_id: str, services: ServicesDep, caller: CallerDep) -> Response:
    with services.store.transaction() as tx:
        row = _undecided(tx, caller, letter_id)
        if not tx.dead_letters.discard(row.tenant_id, row.id, tx.now()):
            _undecided(tx, caller, letter_id)  # the error names the decision
            raise Conflict(f"Somebody has decided about dead letter {row.id} meanwhile.")
        return JSONResponse(_letter_json(get_letter(tx, caller, letter_id)))


def get_letter(tx: Transaction, caller: Caller, letter_id: str, param: str = "id") -> DeadLetter:
    row = tx.dead_letters.get(caller.tenant_id, letter_id)
    if row is None:
        raise NotFound(f"No such DeadLetter object: {letter_id}", param=param)
    return row


def _undecided(tx: Transaction, caller: Caller, letter_id: str) -> DeadLetter:
    row = get_letter(tx, caller, letter_id)
    if row.state is not DeadLetterState.DEAD:
        replayed_as = f", as {row.replay_job_id}" if row.replay_job_id else ""
        raise Conflict(f"Dead letter {row.id} is {row.state} already{replayed_as}.")
    return row


def _letter_json(row: DeadLetter) -> JsonObject:
    return DeadLetterObject.shown(row, object="dead_letter")
