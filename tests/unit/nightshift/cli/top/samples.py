"""A service in the middle of its night, as its server would tell it."""

from collections.abc import Sequence
from typing import Any

from nightshift.cli.top.snapshot import Snapshot

NOW_S = 1_795_000_000


def a_model(**overrides: Any) -> dict[str, Any]:
    figures = {
        "running": 96,
        "waiting": 32,
        "kv_blocks_used": 800,
        "kv_blocks": 1000,
        "busy_fraction": 0.93,
        "starved_fraction": 0.02,
        "prompt_tokens_per_s": 5400.0,
        "generation_tokens_per_s": 2300.0,
        "rows_per_s": 18.4,
        "first_token_p50_s": {"interactive": 0.12},
        "first_token_p95_s": {"interactive": 0.4},
    }
    return figures | overrides


def a_worker(number: int = 1, **overrides: Any) -> dict[str, Any]:
    worker = {
        "id": f"wrk_{number:02}kq8z5m2x",
        "object": "worker",
        "status": "ready",
        "models": ["qwen3-8b", "minilm"],
        "warm_models": ["qwen3-8b"],
        "capacity": "spot",
        "drain_requested_at": None,
        "notice": None,
        "started_at": NOW_S - 3600,
        "heartbeat_at": NOW_S - 2,
        "host": f"gpu-{number}.example",
        "pid": 40 + number,
        "figures": {
            "shards": 3,
            "requests": 12,
            "memory_bytes": 6 << 30,
            "device": {
                "kind": "cuda",
                "name": "NVIDIA H100 80GB HBM3",
                "memory_used_bytes": 71 << 30,
                "memory_bytes": 80 << 30,
                "utilisation": 0.97,
            },
            "models": {"qwen3-8b": a_model()},
        },
    }
    return worker | overrides


def a_job(number: int = 1, **overrides: Any) -> dict[str, Any]:
    job = {
        "id": f"job_{number:02}m3v7c9q1t5",
        "status": "running",
        "name": f"nightly-{number}",
        "model": "qwen3-8b",
        "priority": "standard",
        "counts": {"total": 100_000, "succeeded": 41_200, "failed": 12},
        "rows_estimated": 100_000,
        "paused_at": None,
        "eta_at": NOW_S + 5400,
        "expires_at": NOW_S + 20_000,
    }
    return job | overrides


def a_group(**overrides: Any) -> dict[str, Any]:
    group = {
        "kind": "bulk",
        "priority": "standard",
        "model": "qwen3-8b",
        "capacity": "any",
        "queued": 4120,
        "leased": 6,
        "rows_left": 1_250_000,
        "oldest_at": NOW_S - 600,
    }
    return group | overrides


def an_overview(**overrides: Any) -> dict[str, Any]:
    service = {
        "workers_ready": 2,
        "prompt_tokens_per_s": 10_800.0,
        "generation_tokens_per_s": 4600.0,
        "rows_per_s": 36.8,
        "busy_fraction": 0.93,
        "first_token_p50_s": {"interactive": 0.12, "standard": 1.7},
        "first_token_p95_s": {"interactive": 0.4, "standard": 12.0},
    }
    history = [
        service | {"at": NOW_S - 900 + 15 * step, "generation_tokens_per_s": 4000.0 + 900 * (step % 7)}
        for step in range(60)
    ]
    overview = {
        "object": "overview",
        "at": NOW_S,
        "workers": {"ready": 2, "draining": 1},
        "service": service,
        "history": history,
        "queue": [],
        "queue_is_whole": True,
        "workers_wanted": [
            {"model": "qwen3-8b", "capacity": "any", "pool": None, "wanted": 5, "ready": 2, "starting": 0},
            {"model": "minilm", "capacity": "spot", "pool": "a", "wanted": 1, "ready": 2, "starting": 0},
        ],
        "service_queue": [
            a_group(kind="online", priority="interactive", queued=3, leased=24, rows_left=27),
            a_group(),
            a_group(priority="background", model="minilm", queued=88, leased=0, rows_left=22_000),
        ],
    }
    return overview | overrides


def a_night(
    *,
    workers: Sequence[dict[str, Any]] | None = None,
    jobs: Sequence[dict[str, Any]] | None = None,
    **overview: Any,
) -> Snapshot:
    default_workers = [
        a_worker(1),
        a_worker(2, drain_requested_at=NOW_S - 5),
        a_worker(3, status="draining", figures=None, capacity="on_demand"),
    ]
    default_jobs = [
        a_job(1),
        a_job(2, eta_at=NOW_S + 30_000, counts={"total": None, "succeeded": 900, "failed": 0}),
        a_job(3, status="finalizing", counts={"total": 5000, "succeeded": 5000, "failed": 0}),
        a_job(4, paused_at=NOW_S - 60, eta_at=None, name=None),
    ]
    return Snapshot(
        at_s=float(NOW_S),
        server="http://127.0.0.1:8000",
        overview=an_overview(**overview),
        workers=default_workers if workers is None else workers,
        jobs=default_jobs if jobs is None else jobs,
    )
