"""Rows that crashed workers, with the decisions on them, and one such row."""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from api.jobs import dead_letters
from api.page.view import Action, Context, Outcome, PageRequest, View, paged
from api.page.views.job_rows import Tone
from api.page.views.worker_rows import IN_WORDS
from nightshift.jobs.dead_letters import DeadLetterState
from nightshift.store import Transaction

PER_PAGE: Final = 50
TONES: Final[Mapping[DeadLetterState, Tone]] = {
    DeadLetterState.DEAD: Tone.BAD,
    DeadLetterState.REPLAYED: Tone.GOOD,
    DeadLetterState.DISCARDED: Tone.OVER,
}


def load(tx: Transaction, request: PageRequest, now: datetime) -> Context:
    after, state, job_id = (
        request.text("after"),
        request.choice("state", DeadLetterState),
        request.text("job"),
    )
    rows = tx.dead_letters.list(
        request.caller.tenant_id,
        limit=PER_PAGE + 1,
        after=None if after is None else dead_letters.get_letter(tx, request.caller, after, param="after"),
        state=state,
        job_id=job_id,
    )
    return {
        "letters": rows[:PER_PAGE],
        **paged(request, rows, PER_PAGE),
        "is_filtered": state is not None or job_id is not None,
        "state": state,
        "job_id": job_id,
        "states": list(DeadLetterState),
        "tones": TONES,
        "causes": IN_WORDS,
    }


def replay(request: PageRequest) -> Outcome:
    dead_letters.replay_dead_letter(request.path["letter_id"], request.services, request.caller)
    return Outcome(message="The row is submitted again, as a job of its own.")


def discard(request: PageRequest) -> Outcome:
    dead_letters.discard_dead_letter(request.path["letter_id"], request.services, request.caller)
    return Outcome(message="The dead letter is discarded. The row's error stays in its job's output.")


VIEW: Final = View(
    path="/ui/dead_letters",
    title="Dead letters",
    template="jobs/dead_letters.html",
    load=load,
    actions=(
        Action(path="/replay/{letter_id}", act=replay),
        Action(path="/discard/{letter_id}", act=discard),
    ),
)


def load_dead_letter(tx: Transaction, request: PageRequest, now: datetime) -> Context:
    letter = dead_letters.get_letter(tx, request.caller, request.path["letter_id"])
    return {
        "letter": letter,
        "job": tx.jobs.get(request.caller.tenant_id, letter.job_id),
        "shard": tx.shards.get(request.caller.tenant_id, letter.shard_id),
        "tones": TONES,
        "cause": IN_WORDS[letter.cause],
    }


DEAD_LETTER_VIEW: Final = View(
    path="/ui/dead_letters/{letter_id}",
    title="Dead letter",
    template="jobs/dead_letter.html",
    load=load_dead_letter,
    is_in_navigation=False,
    section="/ui/dead_letters",
    actions=(Action(path="/replay", act=replay), Action(path="/discard", act=discard)),
)
