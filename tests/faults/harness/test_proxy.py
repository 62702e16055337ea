"""The fault proxy does to a connection what it says."""

import socket
import threading
from contextlib import contextmanager, suppress

import pytest

from tests.faults.kit.proxy import Blackhole, FaultProxy, Latency, Refuse, Reset, Swallow, proxied

WAIT_MAX_S = 10.0
SILENCE_S = 0.3  # that nothing comes can only be waited for


@pytest.fixture
def echo():
    """A server that sends back what it gets; its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_serve, args=(listener,), daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def proxy(echo):
    with proxied(echo) as proxy:
        yield proxy


def _serve(listener):
    while True:
        try:
            peer, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_echo, args=(peer,), daemon=True).start()


def _echo(peer):
    with peer, suppress(OSError):
        while data := peer.recv(65536):
            peer.sendall(data)


@contextmanager
def connected(proxy):
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=WAIT_MAX_S) as connection:
        yield connection


def ask(connection, data, size=None):
    connection.sendall(data)
    return connection.recv(size or 65536)


def test_it_passes_everything_on_when_healed(proxy):
    with connected(proxy) as connection:
        assert ask(connection, b"hello") == b"hello"
        proxy.set(Latency(20))
        assert ask(connection, b"late") == b"late"
        proxy.heal()
        assert ask(connection, b"again") == b"again"


def assert_silent(connection):
    connection.settimeout(SILENCE_S)
    with pytest.raises(TimeoutError):
        connection.recv(1)
    connection.settimeout(WAIT_MAX_S)


def test_a_black_hole_says_nothing_and_gives_out_on_healing_what_it_held(proxy):
    with connected(proxy) as connection:
        proxy.set(Blackhole("down"))
        connection.sendall(b"is anybody there")
        assert_silent(connection)
        proxy.heal()
        assert connection.recv(100) == b"is anybody there"


def test_a_commit_is_carried_out_and_its_answer_becomes_a_reset_once(proxy):
    with connected(proxy) as connection:
        proxy.set(Reset(after=b"COMMIT"))
        assert ask(connection, b"SELECT") == b"SELECT"
        with pytest.raises(ConnectionResetError):
            ask(connection, b"COMMIT")
    with connected(proxy) as connection:
        assert ask(connection, b"COMMIT") == b"COMMIT"


def test_one_message_is_swallowed_and_the_others_arrive(proxy):
    with connected(proxy) as connection:
        assert ask(connection, b"one") == b"one"
        proxy.set(Swallow(b"two"))
        connection.sendall(b"two")
        assert_silent(connection)
        assert ask(connection, b"three") == b"three"


@pytest.mark.parametrize(
    "how", [lambda proxy: proxy.set(Refuse()), FaultProxy.reset_connections], ids=["refused", "on demand"]
)
def test_connections_are_reset(proxy, how):
    with connected(proxy) as connection:
        assert ask(connection, b"hello") == b"hello"
        how(proxy)
        with pytest.raises(ConnectionResetError):
            connection.recv(1)


def test_new_connections_are_refused_until_it_heals(proxy):
    proxy.set(Refuse())
    with pytest.raises(ConnectionResetError), connected(proxy) as connection:
        connection.recv(1)  # if the reset was not quicker than the connection
    proxy.heal()
    with connected(proxy) as connection:
        assert ask(connection, b"hello") == b"hello"
