"""Rows that crashed workers: which wait for a decision, and what was decided."""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from api.jobs import dead_letters
from api.page.causes import IN_WORDS
from api.page.job_rows import Tone
from api.page.view import Action, Asked, Context, Outcome, View
from nightshift.jobs.dead_letters import DeadLetterState
from nightshift.store import Transaction

PER_PAGE: Final = 50
TONES: Final[Mapping[DeadLetterState, Tone]] = {
    DeadLetterState.DEAD: Tone.BAD,
    DeadLetterState.REPLAYED: Tone.GOOD,
    DeadLetterState.DISCARDED: Tone.OVER,
}


def load(tx: Transaction, asked: Asked, now: datetime) -> Context:
    after, state, job_id = asked.text("after"), asked.choice("state", DeadLetterState), asked.text("job")
    found = tx.dead_letters.list(
        asked.caller.tenant_id,
        limit=PER_PAGE + 1,
        after=None if after is None else dead_letters.get_letter(tx, asked.caller, after, param="after"),
        state=state,
        job_id=job_id,
    )
    return {
        "letters": found[:PER_PAGE],
        "older": found[PER_PAGE - 1].id if len(found) > PER_PAGE else None,
        "is_first": after is None,
        "is_filtered": state is not None or job_id is not None,
        "state": state,
        "job_id": job_id,
        "states": list(DeadLetterState),
        "tones": TONES,
        "causes": IN_WORDS,
    }


def replay(asked: Asked) -> Outcome:
    dead_letters.replay_dead_letter(asked.path["letter_id"], asked.services, asked.caller)
    return Outcome(message="The row is submitted again, as a job of its own.")


def discard(asked: Asked) -> Outcome:
    dead_letters.discard_dead_letter(asked.path["letter_id"], asked.services, asked.caller)
    return Outcome(message="The dead letter is discarded. The row's error stays in its job's output.")


VIEW: Final = View(
    path="/ui/dead_letters",
    title="Dead letters",
    template="dead_letters.html",
    load=load,
    actions=(
        Action(path="/replay/{letter_id}", act=replay),
        Action(path="/discard/{letter_id}", act=discard),
    ),
)
