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


def test_messages_arrive_in_order_and_are_numbered(ends: Ends) -> None:
    sender, receiver = ends
    assert [sender.send(text) for text in "abc"] == [1, 2, 3]
    assert receiver.receive() == ["a", "b", "c"]
    assert receiver.receive(waits=False) == []


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


def test_messages_of_several_threads_are_never_mixed(ends: Ends) -> None:
    sender, receiver = ends
    texts = [str(number) * 100_000 for number in range(4)]
    threads = [threading.Thread(target=sender.send, args=[text]) for text in 2 * texts]
    for thread in threads:
        thread.start()
    received: list[str] = []
    while len(received) < len(threads):
        received += receiver.receive()
    for thread in threads:
        thread.join()
    assert sorted(received) == sorted(2 * texts)


def test_what_was_sent_before_the_end_closed_is_received_and_then_the_close(ends: Ends) -> None:
    sender, receiver = ends
    sender.send("last")
    sender.close()
    assert receiver.receive() == ["last"]
    with pytest.raises(Closed):
        receiver.receive(waits=False)
    with pytest.raises(Closed):
        receiver.send("too late")
