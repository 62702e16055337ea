"""The connection to a server: which one, with which key, and what is tried again."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import httpx

from nightshift.client.answers import (
    RETRY,
    ApiError,
    ServerUnreachable,
    api_error,
    check_api_key,
    check_base_url,
    json_object,
)
from nightshift.errors import ConfigurationError, InvalidRequest
from nightshift.jobs import JsonObject
from nightshift.process.settings import ClientSettings, DataSettings
from nightshift.tenants.keys import API_KEY_FILE

CONNECT_TIMEOUT_S: Final = 5.0
ANSWER_TIMEOUT_S: Final = 30.0
TRIES_MAX: Final = 5
FOLLOWING_TRIES_MAX: Final = 20  # about two minutes, enough for a restart

T = TypeVar("T")


class Connection:
    """One server, with one key. Threads may share it."""

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], object] = time.sleep,
        tries_max: int = TRIES_MAX,
        answer_timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> None:
        """`base_url` may end in `/v1`; without it or the key, those of the command line are taken.
        `tries_max`: of a call that is safe to repeat.

        Raises ConfigurationError for an invalid URL or key, and where there is no key.
        """
        base_url = ClientSettings().base_url if base_url is None else base_url
        check_base_url(base_url)
        api_key = _own_key() if api_key is None else api_key
        check_api_key(api_key)
        self._http = httpx.Client(
            base_url=base_url.rstrip("/").removesuffix("/v1"),
            headers={"authorization": f"Bearer {api_key}"},
            timeout=httpx.Timeout(answer_timeout_s, connect=min(CONNECT_TIMEOUT_S, answer_timeout_s)),
            transport=transport,
        )
        self._sleep = sleep
        self._tries_max = tries_max

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def _call(self, method: str, path: str, **options: Any) -> JsonObject:
        """The JSON of an answer. `options`: those of `_answer`."""
        return json_object(self._answer(method, path, **options))

    def _answer(
        self,
        method: str,
        path: str,
        *,
        is_following: bool = False,
        is_repeatable: bool = True,
        **request: Any,
    ) -> httpx.Response:
        """An answer without an error. `request`: its parts, as httpx takes them.

        `is_repeatable`: safe to retry, as reads, changes, and creates with a key are. `is_following`: the
        server answered before, so that a refused connection is tried again. Raises ApiError,
        ServerUnreachable, and InvalidRequest for NaN and for text that is no Unicode.
        """
        tries = 1 if not is_repeatable else FOLLOWING_TRIES_MAX if is_following else self._tries_max
        for attempt in count(1):
            try:
                answer = self._http.request(method, path, **request)
                if not answer.is_error:
                    return answer
                raise api_error(answer, is_repeat=attempt > 1)
            except (httpx.TransportError, ApiError) as error:
                is_absent = isinstance(error, httpx.ConnectError) and not is_following
                self._wait(error, attempt, 1 if is_absent else tries)
            except ValueError as error:
                raise InvalidRequest(f"The request cannot be written: {error}.") from error
        raise AssertionError("the last attempt returns or raises")

    @contextmanager
    def _stream(self, path: str, **request: Any) -> Iterator[httpx.Response]:
        """An answer whose body is still to be read. Raises ApiError, httpx.TransportError."""
        with self._http.stream("GET", path, **request) as answer:
            if answer.is_error:
                answer.read()
                raise api_error(answer)
            yield answer

    def _resumed(
        self,
        opened: Callable[[str | None], Iterator[T]],
        id_of: Callable[[T], str],
        after: str | None,
        *,
        tries: int,
    ) -> Iterator[T]:
        """The elements of a stream that is opened again, after the last one's id, where it broke.

        Raises ApiError, and ServerUnreachable after so many failures in a row.
        """
        failures = 0
        while True:
            try:
                for element in opened(after):
                    yield element
                    after, failures = id_of(element) or after, 0
                return
            except (httpx.TransportError, ApiError) as error:
                failures += 1
                self._wait(error, failures, tries)

    def _wait(self, error: httpx.TransportError | ApiError, failures: int, tries: int) -> None:
        """Waits before another try. Raises the error where none is left, or none helps."""
        if isinstance(error, httpx.TransportError):
            if failures >= tries:
                raise _unreachable(error) from error
            self._sleep(RETRY.delay_s(failures))
        elif failures >= tries or not error.is_passing:
            raise error
        else:
            self._sleep(error.retry_after_s or RETRY.delay_s(failures))


def _unreachable(error: httpx.TransportError) -> ServerUnreachable:
    reason, server = str(error).rstrip("."), error.request.url.join("/")
    return ServerUnreachable(
        f"No answer from {server}: {reason}. Is the server running? "
        "`nightshift up` starts one; NIGHTSHIFT_BASE_URL says where another is."
    )


def _own_key() -> str:
    data_dir = DataSettings().data_dir.expanduser().absolute()
    return ClientSettings().api_key or _key_in_file(data_dir / API_KEY_FILE)


def _key_in_file(path: Path) -> str:
    try:
        return path.read_text().strip()
    except PermissionError as error:
        raise ConfigurationError(
            f"the API key in {path} is for another user of this machine: set NIGHTSHIFT_API_KEY to a key of "
            "yours, which `nightshift keys create` makes for the service's user",
            param="NIGHTSHIFT_API_KEY",
        ) from error
    except OSError as error:
        raise ConfigurationError(
            f"no API key: start the service with `nightshift up`, which leaves one in {path} (there is none "
            "yet); for a service elsewhere set NIGHTSHIFT_API_KEY, or NIGHTSHIFT_DATA_DIR to its directory",
            param="NIGHTSHIFT_API_KEY",
        ) from error
