"""Messages arrive whole and in order, whatever their size, and a closed end is noticed."""

import socket
import threading
from collections.abc import Iterator

import pytest

from workers.serving.engine_process.channel import RECEIVED_BYTES, Channel, Closed

Ends = tuple[Channel, Channel]


@pytest.fixture
def ends() -> Iterator[Ends]:
    one, other = socket.socketpair()
    channels = Channel(one), Channel(other)
    yield channels
    for channel in channels:
        channel.close()


def test_messages_arrive_in_order(ends: Ends) -> None:
    sender, receiver = ends
    sender.send("a", "b")
    sender.send("c")
    assert receiver.receive() == ["a", "b", "c"]
    assert receiver.receive(waits=False) == []


def test_what_messages_sent_together_have_in_common_is_one_object_on_the_other_side(ends: Ends) -> None:
    sender, receiver = ends
    prompt = tuple(range(1000))
    sender.send([prompt], [prompt])
    (first,), (second,) = receiver.receive()
    assert first == prompt
    assert first is second


def test_a_message_larger_than_any_buffer_arrives_whole(ends: Ends) -> None:
    sender, receiver = ends
    large = bytes(3 * RECEIVED_BYTES + 1)
    sending = threading.Thread(target=lambda: [sender.send(message) for message in (1, large, 2)])
    sending.start()
    received: list[object] = []
    while len(received) < 3:
        received += receiver.receive()
    sending.join()
    assert received == [1, large, 2]


def test_a_message_that_has_come_in_part_is_waited_for_or_left(ends: Ends) -> None:
    sender, receiver = ends
    sender.send("whole")
    data = sender._end  # the bytes of a message, cut as the system may cut them
    data.sendall((100).to_bytes(8, "little") + bytes(10))
    assert receiver.receive() == ["whole"]
    assert receiver.receive(waits=False) == []


def test_what_was_sent_before_the_end_closed_is_received_and_then_the_close(ends: Ends) -> None:
    sender, receiver = ends
    sender.send("last")
    sender.close()
    assert receiver.receive() == ["last"]
    with pytest.raises(Closed):
        receiver.receive(waits=False)
    with pytest.raises(Closed):
        receiver.send("too late")
