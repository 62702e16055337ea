"""Nudges through a real Valkey: heard at once, missed without harm."""

import threading

from nightshift.broker.hints import NudgeListener, Nudger
from tests.integration.servers import ValkeyServer

PATIENCE_S = 20.0


def test_a_nudge_is_heard_by_every_worker(valkey: ValkeyServer) -> None:
    heard = [threading.Event(), threading.Event()]
    listeners = [NudgeListener(valkey.settings, event.set) for event in heard]
    for listener in listeners:
        listener.start()
        assert listener.is_listening.wait(PATIENCE_S)
    nudger = Nudger(valkey.settings)

    assert nudger.nudge()

    assert all(event.wait(PATIENCE_S) for event in heard)
    for listener in listeners:
        listener.stop()
    nudger.close()


def test_with_nobody_listening_a_nudge_does_no_harm(valkey: ValkeyServer) -> None:
    nudger = Nudger(valkey.settings)
    assert nudger.nudge()
    nudger.close()
