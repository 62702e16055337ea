"""Pub/sub hints through a real Valkey: delivered at once, lost without harm."""

import threading

from nightshift.broker.hints import HintListener, HintPublisher
from tests.integration.servers import ValkeyServer

TIMEOUT_S = 20.0


def test_a_hint_reaches_every_listener(valkey: ValkeyServer) -> None:
    received = [threading.Event(), threading.Event()]
    listeners = [HintListener(valkey.settings, event.set) for event in received]
    for listener in listeners:
        listener.start()
        assert listener.is_listening.wait(TIMEOUT_S)
    publisher = HintPublisher(valkey.settings)

    assert publisher.publish()

    assert all(event.wait(TIMEOUT_S) for event in received)
    for listener in listeners:
        listener.stop()
    publisher.close()


def test_a_hint_without_listeners_does_no_harm(valkey: ValkeyServer) -> None:
    publisher = HintPublisher(valkey.settings)
    assert publisher.publish()
    publisher.close()
