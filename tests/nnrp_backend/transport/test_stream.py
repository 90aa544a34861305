import asyncio
import logging
import time

import pytest

from nnrp_backend.protocol.states import ConnectionState
from nnrp_backend.transport import stream as stream_module
from nnrp_backend.transport.memory import connect_pair
from nnrp_backend.transport.stream import ConnectionStream
from tests.support.waiting import turns, until


class Core:
    """A core that reports each call as an event and can be told what to do."""

    def __init__(self):
        self.state = ConnectionState.OPEN
        self.congested = False
        self.outgoing = []
        self.deadline = None
        self.handled_at = []
        self.eofs = 0

    def receive_data(self, data, now):
        return [("data", data)]

    def receive_eof(self):
        self.eofs += 1
        self.state = ConnectionState.CLOSED
        return [("eof",)] if self.eofs == 1 else []

    def data_to_send(self):
        pieces, self.outgoing = self.outgoing, []
        return pieces

    def next_deadline(self):
        return self.deadline

    def handle_deadline(self, now):
        self.handled_at.append(now)
        self.deadline = None
        return [("deadline",)]


class Stream(ConnectionStream):
    """A role that keeps its events."""

    def __init__(self, core):
        super().__init__(core)
        self.seen = []
        self.on_event = lambda event: None

    def opened(self, now):
        self.seen.append("opened")

    def dispatch(self, events):
        for event in events:
            self.seen.append(event)
            self.on_event(event)

    def writable(self):
        self.seen.append("writable")

    def lost(self):
        self.seen.append("lost")


class Far(asyncio.Protocol):
    """The other end: keeps what arrives, write by write."""

    def __init__(self):
        self.reads = []
        self.lost = False

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.reads.append(data)

    def connection_lost(self, error):
        self.lost = True


@pytest.fixture
async def ends():
    """A stream and the other end of its connection."""
    near, far = Stream(Core()), Far()
    connect_pair(near, far)
    yield near, far
    near.abort()
    await turns()


async def test_frames_of_one_turn_leave_in_one_write(ends):
    near, far = ends
    for number in range(5):
        near.core.outgoing.append(b"%d" % number)
        near.flush_soon()
    await until(lambda: far.reads)
    assert far.reads == [b"01234"]


async def test_frames_of_many_tasks_leave_in_one_write(ends):
    near, far = ends
    step = asyncio.Event()

    async def produce(number):
        await step.wait()
        near.core.outgoing.append(b"%d" % number)
        near.flush_soon()

    tasks = [asyncio.create_task(produce(number)) for number in range(8)]
    await turns()
    step.set()
    await asyncio.gather(*tasks)
    await until(lambda: far.reads)
    assert far.reads == [b"01234567"]


async def test_what_a_read_makes_the_core_say_is_sent_in_one_write(ends):
    near, far = ends
    near.on_event = lambda event: near.core.outgoing.extend([b"one", b"two"])
    far.transport.write(b"question")
    await until(lambda: far.reads)
    assert far.reads == [b"onetwo"]
    assert near.seen == ["opened", ("data", b"question")]


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (stream_module.LARGE_READ, ["read", "turn", "read", "turn", "read", "turn"]),
        (stream_module.LARGE_READ - 1, ["read", "read", "read", "turn", "turn", "turn"]),
    ],
)
async def test_a_flood_is_read_in_turns_with_others(ends, size, expected):
    near, far = ends
    happened = []

    def note(_):
        happened.append("read")
        asyncio.get_running_loop().call_soon(happened.append, "turn")

    near.on_event = note
    for _ in range(3):
        far.transport.write(bytes(size))
    await until(lambda: len(happened) == 6)
    assert happened == expected


async def test_a_connection_that_ends_while_it_gives_way(ends):
    near, far = ends
    near.on_event = lambda event: near.abort()
    far.transport.write(bytes(stream_module.LARGE_READ))
    await until(lambda: near.seen[-1] == "lost")
    await turns()
    assert near.seen.count(("data", bytes(stream_module.LARGE_READ))) == 1


async def test_it_reads_while_writes_wait(ends):
    near, far = ends
    far.transport.pause_reading()
    near.core.outgoing.append(b"x" * (stream_module.HIGH_WATER + 1))
    near.flush_soon()
    await until(lambda: near.write_paused)
    assert near.core.congested
    assert near.unsent > stream_module.HIGH_WATER
    far.transport.write(b"cancel")
    await until(lambda: ("data", b"cancel") in near.seen)
    assert near.write_paused
    far.transport.resume_reading()
    await until(lambda: "writable" in near.seen)
    assert not near.write_paused
    assert not near.core.congested


async def test_the_timer_fires_at_the_deadline(ends):
    near, _ = ends
    due = near.core.deadline = time.monotonic() + 0.03
    near.settle()
    await until(lambda: ("deadline",) in near.seen)
    [at] = near.core.handled_at
    assert at >= due


async def test_an_earlier_deadline_replaces_the_timer(ends):
    near, _ = ends
    near.core.deadline = time.monotonic() + 3600
    near.settle()
    near.core.deadline = time.monotonic() + 0.01
    near.settle()
    await until(lambda: ("deadline",) in near.seen)


async def test_a_deadline_that_moved_back_is_not_handled_early(ends):
    near, _ = ends
    near.core.deadline = time.monotonic() + 0.01
    near.settle()
    due = near.core.deadline = time.monotonic() + 0.08
    await until(lambda: near.core.handled_at)
    [at] = near.core.handled_at
    assert at >= due


async def test_a_closed_core_sends_its_last_words_and_closes(ends):
    near, far = ends

    def refuse(event):
        near.core.outgoing.append(b"refused")
        near.core.state = ConnectionState.CLOSED

    near.on_event = refuse
    far.transport.write(b"nonsense")
    await until(lambda: far.lost)
    assert far.reads == [b"refused"]
    await near.closed


async def test_the_end_of_the_peers_bytes_ends_everything_once(ends):
    near, far = ends
    far.transport.close()
    await near.closed
    assert near.seen == ["opened", ("eof",), "lost"]
    assert near.is_lost
    assert near.error is None


async def test_a_failed_transport_is_the_error(ends):
    near, far = ends
    failure = ConnectionResetError("gone")
    far.transport.cut(failure)
    await near.closed
    assert near.error is failure
    assert near.seen[-2:] == [("eof",), "lost"]


async def test_nothing_is_written_after_the_end(ends):
    near, far = ends
    near.close()
    near.core.outgoing.append(b"late")
    near.flush_soon()
    await near.closed
    await turns()
    assert far.reads == []


async def test_a_peer_that_does_not_read_its_last_words_is_cut_off(ends, monkeypatch):
    monkeypatch.setattr(stream_module, "CLOSE_SECONDS", 0.01)
    near, far = ends
    far.transport.pause_reading()
    near.core.outgoing.append(b"unread")
    near.close()
    await near.closed
    assert far.reads == []


async def test_a_peer_that_lets_everything_pile_up_is_cut_off(ends, monkeypatch, caplog):
    monkeypatch.setattr(stream_module, "MAX_UNSENT_BYTES", 500)
    near, far = ends
    far.transport.pause_reading()
    for _ in range(2):
        near.core.outgoing.append(b"x" * 500)
        near.flush_soon()
        await turns()
    assert not near.is_lost
    near.core.outgoing.append(b"x")
    near.flush_soon()
    await near.closed
    assert caplog.record_tuples == [
        (
            "nnrp_backend.transport.stream",
            logging.WARNING,
            "memory does not read; closing its connection",
        )
    ]


async def test_room_counts_what_waits_and_what_is_queued(ends, monkeypatch):
    monkeypatch.setattr(stream_module, "MAX_UNSENT_BYTES", 1000)
    monkeypatch.setattr(stream_module, "LOW_WATER", 100)
    near, far = ends
    far.transport.pause_reading()
    assert near.has_room(1000)
    assert not near.has_room(1001)
    near.core.outgoing.append(b"x" * 600)  # not written yet
    assert near.has_room(400)
    assert not near.has_room(401)
    far.transport.resume_reading()
    await until(lambda: near.has_room(1000))


async def test_peer_names():
    near = Stream(Core())
    assert near.peer() == "nobody"
    assert near.unsent == 0
    near.abort()
