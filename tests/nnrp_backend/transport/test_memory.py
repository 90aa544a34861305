import asyncio

from nnrp_backend.transport.memory import connect_pair
from tests.support.waiting import until


class Recorder(asyncio.Protocol):
    """Keep what a transport says, in order."""

    def __init__(self):
        self.seen = []

    def connection_made(self, transport):
        self.transport = transport
        self.seen.append("made")

    def data_received(self, data):
        self.seen.append(data)

    def eof_received(self):
        self.seen.append("eof")

    def pause_writing(self):
        self.seen.append("pause")

    def resume_writing(self):
        self.seen.append("resume")

    def connection_lost(self, error):
        self.seen.append(("lost", error))


def pair():
    left, right = Recorder(), Recorder()
    connect_pair(left, right)
    return left, right


async def test_bytes_arrive_write_by_write_and_later():
    left, right = pair()
    left.transport.write(b"one")
    left.transport.writelines([b"tw", b"o"])
    left.transport.write(b"")
    assert right.seen == ["made"]
    await until(lambda: len(right.seen) == 3)
    assert right.seen == ["made", b"one", b"two"]
    assert left.transport.writes == 2


async def test_a_paused_reader_pauses_the_writer():
    left, right = pair()
    left.transport.set_write_buffer_limits(high=8, low=2)
    right.transport.pause_reading()
    left.transport.write(b"12345678")
    assert left.seen == ["made"]
    left.transport.write(b"9")
    assert left.seen == ["made", "pause"]
    assert left.transport.get_write_buffer_size() == 9
    right.transport.resume_reading()
    await until(lambda: left.seen[-1] == "resume")
    assert right.seen == ["made", b"12345678", b"9"]


async def test_close_delivers_what_was_written_first():
    left, right = pair()
    left.transport.write(b"last words")
    left.transport.close()
    left.transport.write(b"too late")
    await until(lambda: ("lost", None) in right.seen)
    assert right.seen == ["made", b"last words", "eof", ("lost", None)]
    assert left.seen == ["made", ("lost", None)]


async def test_abort_loses_what_was_written():
    left, right = pair()
    left.transport.write(b"unsent")
    left.transport.abort()
    await until(lambda: ("lost", None) in right.seen)
    assert b"unsent" not in right.seen


async def test_cut_fails_both_ends():
    left, right = pair()
    left.transport.cut()
    await until(lambda: len(left.seen) == 2 and len(right.seen) == 2)
    for end in (left, right):
        kind, error = end.seen[-1]
        assert kind == "lost"
        assert isinstance(error, ConnectionResetError)
