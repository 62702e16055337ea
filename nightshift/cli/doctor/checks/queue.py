"""Checks of Redis: whether it answers, when it drops keys, what it keeps."""

from contextlib import closing
from datetime import timedelta
from typing import Final

from nightshift.broker.queue import Queue
from nightshift.broker.server_facts import server_facts, server_time
from nightshift.cli.doctor.clocks import compare
from nightshift.cli.doctor.examination import Finding, NotApplicable, error, ok, skipped, warning
from nightshift.cli.doctor.site import Site
from nightshift.cli.processes import valkey
from nightshift.errors import QueueUnavailable
from nightshift.process.settings import QueueSettings

MEMORY_HIGH_SHARE: Final = 0.9
NEVER_EVICTS: Final = "noeviction"

_COST: Final = "Redis holds no work, so a loss costs seconds"


def look_at_queue(site: Site) -> Finding:
    """Redis answers, or there is a server to embed. Raises ConfigurationError."""
    settings = site.redis
    if settings is None:
        return ok(f"embedded: {valkey.find_server()}")
    name = "the embedded server" if site.has_embedded_queue else settings.redis_url
    with closing(Queue(settings)) as queue:
        try:
            queue.ping()
        except QueueUnavailable as refusal:
            if site.has_embedded_queue:  # a socket that was left behind
                return ok(f"embedded: {valkey.find_server()}")
            return error(
                f"{name} does not answer, or takes nothing: {refusal.__cause__}",
                "start Redis, or correct NIGHTSHIFT_REDIS_URL; a full one needs more maxmemory, and its user "
                "the right to all commands on keys and channels `ns:*`",
            )
    return ok(f"{name} answers")


def look_at_eviction(site: Site) -> Finding:
    """A full Redis refuses messages, which are sent again; one that evicts drops them silently."""
    facts = server_facts(_running(site))
    if facts.eviction_policy is None:
        return skipped("the server does not say", "see that its maxmemory-policy is noeviction")
    limit = f"{facts.memory_max_bytes / 2**20:.0f} MiB" if facts.memory_max_bytes else "no limit"
    detail = f"maxmemory-policy is {facts.eviction_policy}, maxmemory {limit}"
    if facts.eviction_policy != NEVER_EVICTS:
        harm = "messages and streams of tokens would be dropped silently" + (
            "" if facts.memory_max_bytes else " once maxmemory is set"
        )
        return warning(detail, f"set it to noeviction: {harm}; {_COST}")
    if facts.memory_max_bytes and facts.memory_used_bytes > facts.memory_max_bytes * MEMORY_HIGH_SHARE:
        share = facts.memory_used_bytes / facts.memory_max_bytes
        return warning(
            f"{detail}, {share:.0%} of it used",
            "raise maxmemory: a full Redis refuses messages, and work starts late",
        )
    return ok(detail)


def look_at_persistence(site: Site) -> Finding:
    """Redis writes what it keeps to its disk without errors."""
    facts = server_facts(_running(site))
    if facts.log_problem or facts.snapshot_problem:
        return error(
            f"writing to its disk fails: {facts.log_problem or facts.snapshot_problem}",
            "look into its log and at its disk: it may refuse writes until that succeeds",
        )
    if facts.is_log_kept:
        return ok("it keeps an append-only file")
    saved_at = facts.snapshot_saved_at
    saved = f"last snapshot {saved_at:%Y-%m-%d %H:%M} UTC" if saved_at else "no snapshot"
    return ok(f"without an append-only file ({saved}); {_COST}")


def look_at_queue_clock(site: Site) -> Finding:
    settings = _running(site)
    return compare("Redis' clock", lambda: server_time(settings), timedelta(microseconds=1))


def _running(site: Site) -> QueueSettings:
    """The settings of a Redis that runs. Raises NotApplicable if it is embedded and does not run."""
    settings = site.redis
    if settings is not None and site.has_embedded_queue:
        try:
            server_time(settings)
        except QueueUnavailable:
            settings = None
    if settings is None:
        raise NotApplicable("the embedded server does not run at present")
    return settings
