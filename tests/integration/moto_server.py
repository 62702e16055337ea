"""moto's S3 server with atomic conditional writes: moto itself looks for the key first and writes it later.
To an upload in parts that is gone, it answers as S3 does: moto itself fails with a status of 500.

python -m tests.integration.moto_server -H 127.0.0.1 -p 5000
"""

import threading
from collections.abc import Callable
from functools import wraps
from typing import Any

from moto.s3.exceptions import NoSuchUpload
from moto.s3.models import S3Backend
from moto.s3.responses import S3Response
from moto.server import main

_lock = threading.Lock()


def _one_at_a_time(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def locked(*args: Any, **options: Any) -> Any:
        with _lock:
            return method(*args, **options)

    return locked


def _of_an_upload(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def checked(backend: S3Backend, bucket_name: str, multipart_id: str, *others: Any) -> Any:
        if multipart_id not in backend.get_bucket(bucket_name).multiparts:
            raise NoSuchUpload(upload_id=multipart_id)
        return method(backend, bucket_name, multipart_id, *others)

    return checked


if __name__ == "__main__":
    # Both have the request's body already, so no slow client holds the lock.
    for name in ("put_object", "_key_response_post"):
        setattr(S3Response, name, _one_at_a_time(getattr(S3Response, name)))
    for name in ("upload_part", "complete_multipart_upload"):
        setattr(S3Backend, name, _of_an_upload(getattr(S3Backend, name)))
    main()
