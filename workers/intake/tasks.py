"""The two messages a worker understands, declared so that Celery accepts them.

Their bodies are never run: the pool reads the message and the intake claims. Under any other pool they
refuse.
"""

from celery import Celery

from nightshift.broker.queue import BULK_TASK, ONLINE_TASK


def declare(app: Celery) -> None:
    """Make the tasks known to the application."""

    @app.task(name=ONLINE_TASK)  # type: ignore[untyped-decorator]
    def online(shard_id: str) -> None:
        """Somebody waits for this shard."""
        raise RuntimeError(_WRONG_POOL)

    @app.task(name=BULK_TASK)  # type: ignore[untyped-decorator]
    def bulk() -> None:
        """There is bulk work."""
        raise RuntimeError(_WRONG_POOL)


_WRONG_POOL = (
    "start the worker with `nightshift worker`: this task runs only in workers.intake.pool:EnginePool"
)
