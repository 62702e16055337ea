"""moto's S3 server with atomic conditional writes: moto itself looks for the key first and writes it later.

python -m tests.integration.moto_server -H 127.0.0.1 -p 5000
"""

import threading
from collections.abc import Callable
from functools import wraps
from typing import Any

from moto.s3.responses import S3Response
from moto.server import main

_lock = threading.Lock()


def _one_at_a_time(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def locked(*args: Any, **options: Any) -> Any:
        with _lock:
            return method(*args, **options)

    return locked


if __name__ == "__main__":
    # Both have the request's body already, so no slow client holds the lock.
    for name in ("put_object", "_key_response_post"):
        setattr(S3Response, name, _one_at_a_time(getattr(S3Response, name)))
    main()
