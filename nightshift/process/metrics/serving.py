"""Answers `GET /metrics` of a process on a port, on a unix socket, or on both."""

import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from socketserver import TCPServer, ThreadingMixIn
from threading import Thread
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app, start_http_server

from nightshift.errors import ConfigurationError

log = logging.getLogger(__name__)

_OWNER_ONLY: Final = 0o600


class MetricsServer:
    """A server of metrics. Open it before it is closed; a port and a socket may be opened, in any order."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._servers: list[tuple[WSGIServer, Thread]] = []

    def open_port(self, port: int, setting: str) -> int:
        """Returns the port; 0 means any free one. Raises ConfigurationError, naming the setting, if taken."""
        try:
            opened: tuple[WSGIServer, Thread] = start_http_server(port, registry=self._registry)
        except OSError as error:
            raise ConfigurationError(
                f"metrics cannot be served on port {port}: {error.strerror}; "
                f"set NIGHTSHIFT_{setting} to a free one, or to 0",
                param=setting,
            ) from error
        self._servers.append(opened)
        log.info("metrics served", extra={"action": "metrics_served", "port": opened[0].server_port})
        return opened[0].server_port

    def open_socket(self, path: Path) -> None:
        """Opens a socket to which only this user can connect, in place of one that a killed process left.

        Raises ConfigurationError.
        """
        app: Callable[..., Any] = make_wsgi_app(self._registry)
        try:
            path.unlink(missing_ok=True)
            server = make_server(str(path), 0, app, _UnixServer, _Handler)
            path.chmod(_OWNER_ONLY)
        except OSError as error:
            raise ConfigurationError(
                f"metrics cannot be served on {path}: {error.strerror or error}", param="METRICS_SOCKET"
            ) from error
        thread = Thread(target=server.serve_forever, name="metrics", daemon=True)
        thread.start()
        self._servers.append((server, thread))

    def close(self) -> None:
        for server, thread in self._servers:
            server.shutdown()
            server.server_close()
            thread.join()
        self._servers.clear()


class _UnixServer(ThreadingMixIn, WSGIServer):
    address_family = socket.AF_UNIX
    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[WSGIRequestHandler]) -> None:
        super().__init__(address[0], handler)  # type: ignore[arg-type]

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # HTTP's would look up a host's name
        self.server_name, self.server_port = "localhost", 0
        self.setup_environ()

    def server_close(self) -> None:
        super().server_close()
        with suppress(OSError):
            Path(str(self.server_address)).unlink()

    def get_request(self) -> tuple[socket.socket, Any]:
        request, _ = super().get_request()
        return request, ("unix", 0)  # the peer has no name


class _Handler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing: a scrape is no event."""
