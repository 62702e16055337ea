"""Facts that a Redis server reports: its clock, its memory, what it keeps over a restart."""

from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import redis

from nightshift.broker.token_streams import connect
from nightshift.errors import QueueUnavailable
from nightshift.process.settings import QueueSettings


@dataclass(frozen=True, kw_only=True)
class ServerFacts:
    """Answers of `INFO`, which managed servers give too, unlike `CONFIG`. None: the server does not say."""

    version: str
    memory_used_bytes: int
    memory_max_bytes: int  # 0: no limit
    eviction_policy: str | None
    is_log_kept: bool  # append-only file
    log_problem: str | None
    snapshot_problem: str | None
    snapshot_saved_at: datetime | None


def server_facts(settings: QueueSettings) -> ServerFacts:
    """Raises QueueUnavailable."""
    info = _asked(settings, "INFO")
    saved_s = int(info.get("rdb_last_save_time", 0))
    return ServerFacts(
        version=str(info.get("valkey_version") or info.get("redis_version") or "unknown"),
        memory_used_bytes=int(info.get("used_memory", 0)),
        memory_max_bytes=int(info.get("maxmemory", 0)),
        eviction_policy=info.get("maxmemory_policy"),
        is_log_kept=bool(int(info.get("aof_enabled", 0))),
        log_problem=_problem(info, "aof_last_write_status", "aof_last_bgrewrite_status"),
        snapshot_problem=_problem(info, "rdb_last_bgsave_status"),
        snapshot_saved_at=datetime.fromtimestamp(saved_s, UTC) if saved_s else None,
    )


def server_time(settings: QueueSettings) -> datetime:
    """Returns the time by the server's clock. Raises QueueUnavailable."""
    seconds, microseconds = _asked(settings, "TIME")
    return datetime.fromtimestamp(seconds, UTC) + timedelta(microseconds=microseconds)


def _asked(settings: QueueSettings, command: str) -> Any:
    with closing(connect(settings, settings.publish_timeout_s)) as client:
        try:
            return client.execute_command(command)
        except redis.RedisError as error:
            raise QueueUnavailable(f"Redis does not answer {command}: {error}") from error


def _problem(info: dict[str, Any], *statuses: str) -> str | None:
    return next((f"{name} is {info[name]}" for name in statuses if info.get(name, "ok") != "ok"), None)
