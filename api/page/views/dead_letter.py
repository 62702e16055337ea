"""One row that crashed workers."""

from datetime import datetime
from typing import Final

from api.jobs import dead_letters
from api.page.causes import IN_WORDS
from api.page.view import Action, Asked, Context, View
from api.page.views.dead_letters import TONES, discard, replay
from nightshift.store import Transaction


def load(tx: Transaction, asked: Asked, now: datetime) -> Context:
    letter = dead_letters.get_letter(tx, asked.caller, asked.path["letter_id"])
    return {
        "letter": letter,
        "job": tx.jobs.get(asked.caller.tenant_id, letter.job_id),
        "shard": tx.shards.get(asked.caller.tenant_id, letter.shard_id),
        "tones": TONES,
        "cause": IN_WORDS[letter.cause],
    }


VIEW: Final = View(
    path="/ui/dead_letters/{letter_id}",
    title="Dead letter",
    template="dead_letter.html",
    load=load,
    is_in_navigation=False,
    section="/ui/dead_letters",
    actions=(Action(path="/replay", act=replay), Action(path="/discard", act=discard)),
)
