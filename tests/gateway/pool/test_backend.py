import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from gateway.pool.backend import Backend, BackendState, WorkerSpec
from gateway.pool.backoff import Backoff
from gateway.pool.interfaces import Worker
from nnrp_backend.client import ClientListener, ConnectError, NotConnected
from nnrp_backend.profile.capabilities import CapabilityRecord
from nnrp_backend.profile.operations import CHAT, EMBEDDINGS
from nnrp_backend.transport.tasks import TaskSet
from tests.support.fake_worker import FakeClient, FakeClock, record
from tests.support.waiting import turns, until

SPEC = WorkerSpec(endpoint="unix:///w1")


def hours() -> Backoff:
    """A pause that no test lives to see the end of."""
    return Backoff(first=36_000.0, longest=36_000.0)


class Bench:
    """A backend with everything around it in the test's hands."""

    def __init__(self, spec: WorkerSpec = SPEC, **options: Any) -> None:
        self.changes = 0
        self.clock = FakeClock()
        self.clients: list[FakeClient] = []
        self.next_client: Callable[[ClientListener], FakeClient] = FakeClient
        self.backend = Backend(
            spec,
            connect=self.connect,
            clock=self.clock,
            on_change=self.changed,
            **{"backoff": lambda: Backoff(first=0.0, longest=0.0), **options},
        )

    def connect(self, listener: ClientListener) -> FakeClient:
        self.clients.append(self.next_client(listener))
        return self.clients[-1]

    def changed(self) -> None:
        self.changes += 1

    def attach(self, capabilities: CapabilityRecord | None = None, **options: Any) -> FakeClient:
        client = FakeClient(self.backend, capabilities=capabilities, **options)
        client.connected = True
        self.backend.attach(client, capabilities)
        return client


def test_a_new_worker_takes_nothing() -> None:
    backend = Bench().backend
    assert backend.state is BackendState.CONNECTING
    assert not backend.is_usable()
    assert not backend.has_room()
    assert not backend.serves("m", CHAT)
    assert repr(backend) == "<Backend unix:///w1 [connecting | models: unknown]>"


def test_an_endpoint_must_make_sense() -> None:
    with pytest.raises(ValueError, match="nonsense"):
        Bench(WorkerSpec(endpoint="nonsense"))


def test_an_attached_worker_takes_work() -> None:
    bench = Bench(WorkerSpec(endpoint="tcp://h:1", name="gpu-1"))
    client = bench.attach(record("m", "a/b"))
    backend = bench.backend
    assert backend.state is BackendState.READY
    assert backend.is_usable()
    assert backend.has_room()
    assert backend.worker == Worker("gpu-1", ours=True, final_chunks=True)
    assert bench.changes == 1
    backend.in_flight = 2
    client.granted_in_flight = 4
    assert repr(backend) == ("<Backend gpu-1 [ready | ours | 2 in flight of 4 | models: a/b, m]>")


def test_a_connection_lost_meanwhile_is_not_attached() -> None:
    bench = Bench()
    with pytest.raises(NotConnected):
        bench.backend.attach(FakeClient(), record("m"))
    assert not bench.backend.is_usable()


class TestWhatItServes:
    def test_by_its_capability_document(self) -> None:
        bench = Bench()
        bench.attach(record("m", "e", operations=(CHAT, EMBEDDINGS)))
        assert bench.backend.serves("m", CHAT)
        assert bench.backend.serves("m", EMBEDDINGS)
        assert not bench.backend.serves("other", CHAT)
        assert not bench.backend.serves("m", "responses.create")
        assert bench.backend.has_model("e")
        assert not bench.backend.has_model("other")

    def test_an_embeddings_worker_serves_no_chat(self) -> None:
        bench = Bench()
        bench.attach(record("e", operations=(EMBEDDINGS,)))
        assert not bench.backend.serves("e", CHAT)

    def test_a_document_without_models_serves_none(self) -> None:
        bench = Bench()
        bench.attach(record())
        assert not bench.backend.serves("m", CHAT)

    def test_by_configuration_where_it_does_not_say(self) -> None:
        bench = Bench(WorkerSpec(endpoint="tcp://h:1", models=("m",)))
        assert bench.backend.known
        assert bench.backend.serves("m", CHAT)
        bench.attach(None, ours=False)
        assert bench.backend.serves("m", CHAT)
        assert not bench.backend.serves("other", CHAT)
        assert not bench.backend.serves("m", EMBEDDINGS)
        assert list(bench.backend.models()) == [
            {"id": "m", "object": "model", "owned_by": "tcp://h:1"}
        ]

    def test_configuration_narrows_what_it_says(self) -> None:
        bench = Bench(WorkerSpec(endpoint="tcp://h:1", models=("m",)))
        bench.attach(record("m", "hidden"))
        assert not bench.backend.serves("hidden", CHAT)
        assert [card["owned_by"] for card in bench.backend.models()] == ["fake"]

    def test_without_either_any_model_by_chat(self) -> None:
        bench = Bench()
        bench.attach(None, ours=False)
        assert bench.backend.worker == Worker("unix:///w1", ours=False, final_chunks=False)
        assert bench.backend.serves("anything", CHAT)
        assert not bench.backend.serves("anything", EMBEDDINGS)
        assert list(bench.backend.models()) == []

    def test_chunks_are_final_only_where_declared(self) -> None:
        bench = Bench()
        bench.attach(record("m", final=False))
        assert bench.backend.worker is not None
        assert not bench.backend.worker.final_chunks

    def test_it_is_remembered_over_a_reconnect(self) -> None:
        bench = Bench()
        bench.attach(record("m")).lose()
        assert bench.backend.serves("m", CHAT)
        assert not bench.backend.is_usable()

    def test_what_listens_there_next_is_not_bound_by_it(self) -> None:
        bench = Bench()
        bench.attach(record("m")).lose()
        bench.attach(None, ours=False)
        assert bench.backend.worker == Worker("unix:///w1", ours=False, final_chunks=False)
        assert list(bench.backend.models()) == []
        assert bench.backend.serves("anything", CHAT)

    def test_a_card_without_an_id_is_no_model(self) -> None:
        bench = Bench()
        odd = CapabilityRecord(adapter="x", levels=(1,), operations=(), models=({"name": "m"},))
        bench.attach(odd)
        assert list(bench.backend.models()) == []


class TestRoom:
    def test_the_granted_number_is_kept(self) -> None:
        bench = Bench()
        bench.attach(record("m"), granted=2)
        bench.backend.in_flight = 1
        assert bench.backend.has_room()
        bench.backend.in_flight = 2
        assert not bench.backend.has_room()

    def test_what_the_client_itself_uses_counts(self) -> None:
        bench = Bench()
        client = bench.attach(record("m"), granted=0)
        assert client.available == 0
        assert not bench.backend.has_room()

    @pytest.mark.parametrize(("window", "level"), [(0, 2), (0, 3), (None, 3), (5, 3)])
    def test_a_full_worker_is_left_alone_as_long_as_it_asks(
        self, window: int | None, level: int
    ) -> None:
        bench = Bench()
        bench.attach(record("m"))
        bench.backend.on_pressure(window, level, 250)
        assert not bench.backend.has_room()
        assert "paused" in repr(bench.backend)
        bench.clock.advance(0.24)
        assert not bench.backend.has_room()
        before = bench.changes
        bench.clock.advance(0.01)
        assert bench.backend.has_room()
        assert bench.changes == before + 1

    def test_a_report_of_room_ends_the_pause(self) -> None:
        bench = Bench()
        bench.attach(record("m"))
        bench.backend.on_pressure(0, 2, 60_000)
        bench.backend.on_pressure(3, 0, 0)
        assert bench.backend.has_room()
        assert bench.clock.pending == 0

    def test_a_pause_without_a_length_ends_too(self) -> None:
        bench = Bench()
        bench.attach(record("m"))
        bench.backend.on_pressure(0, 2, 0)
        assert not bench.backend.has_room()
        bench.clock.advance(1.0)
        assert bench.backend.has_room()

    @pytest.mark.parametrize(("window", "level"), [(0, 0), (0, 1), (4, 2), (None, 2)])
    def test_lesser_pressure_is_no_reason_to_stop(self, window: int | None, level: int) -> None:
        bench = Bench()
        bench.attach(record("m"))
        bench.backend.on_pressure(window, level, 250)
        assert bench.backend.has_room()

    def test_a_pause_ends_with_its_connection(self) -> None:
        bench = Bench()
        bench.attach(record("m")).listener.on_pressure(0, 2, 60_000)
        bench.backend.detach("gone")
        bench.attach(record("m"))
        assert bench.backend.has_room()


class TestStates:
    def test_a_missed_probe_degrades_and_an_answered_one_restores(self) -> None:
        bench = Bench()
        bench.attach(record("m"))
        bench.backend.on_probe(None)
        assert bench.backend.state is BackendState.DEGRADED
        assert not bench.backend.is_usable()
        bench.backend.on_probe(None)
        bench.backend.on_probe(0.002)
        assert bench.backend.state is BackendState.READY
        assert bench.backend.rtt == 0.002

    def test_draining_takes_no_more_until_the_next_connection(self) -> None:
        bench = Bench()
        client = bench.attach(record("m"))
        bench.backend.on_drain()
        assert bench.backend.state is BackendState.DRAINING
        bench.backend.on_probe(0.001)
        bench.backend.on_probe(None)
        assert bench.backend.state is BackendState.DRAINING
        client.lose()
        assert bench.backend.state is BackendState.DOWN
        bench.attach(record("m"))
        assert bench.backend.state is BackendState.READY

    def test_a_worker_that_drains_already(self) -> None:
        bench = Bench()
        client = FakeClient(bench.backend)
        client.connected = client.draining = True
        bench.backend.attach(client, record("m"))
        assert bench.backend.state is BackendState.DRAINING

    def test_a_lost_connection(self) -> None:
        bench = Bench()
        bench.attach(record("m")).lose(ConnectionResetError("reset by peer"))
        assert bench.backend.state is BackendState.DOWN
        assert bench.backend.last_error == "reset by peer"
        assert (bench.backend.connects, bench.backend.losses) == (1, 1)
        bench.backend.detach("twice")
        assert bench.backend.losses == 1

    def test_each_connection_has_its_number(self) -> None:
        bench = Bench()
        bench.attach(record("m")).lose()
        first = bench.backend.epoch
        bench.attach(record("m"))
        assert bench.backend.epoch != first

    def test_degrading_a_worker_that_is_gone_means_nothing(self) -> None:
        bench = Bench()
        bench.attach(record("m")).lose()
        bench.backend.degrade()
        assert bench.backend.state is BackendState.DOWN


class TestRunning:
    async def test_it_connects_asks_and_serves(self) -> None:
        bench, tasks = Bench(), TaskSet("test")
        bench.next_client = lambda listener: FakeClient(listener, capabilities=record("m"))
        tasks.start(bench.backend.run(), name="run")
        await until(bench.backend.is_usable)
        assert bench.backend.serves("m", CHAT)
        tasks.cancel_all()
        await tasks.join()
        assert bench.clients[0].closed
        assert bench.backend.state is BackendState.DOWN

    async def test_it_tries_until_the_worker_is_there(self) -> None:
        bench, tasks = Bench(), TaskSet("test")
        bench.next_client = lambda listener: FakeClient(listener, refuses=True)
        tasks.start(bench.backend.run(), name="run")
        await until(lambda: len(bench.clients) > 3)
        assert bench.backend.last_error == "cannot connect to fake: refused"
        bench.next_client = lambda listener: FakeClient(listener, capabilities=record("m"))
        await until(bench.backend.is_usable)
        assert bench.backend.connects == 1
        assert bench.backend.losses == 0
        tasks.cancel_all()
        await tasks.join()

    async def test_it_comes_back_after_a_loss(self) -> None:
        bench, tasks = Bench(), TaskSet("test")
        bench.next_client = lambda listener: FakeClient(listener, capabilities=record("m"))
        tasks.start(bench.backend.run(), name="run")
        await until(bench.backend.is_usable)
        bench.clients[0].lose()
        assert not bench.backend.is_usable()
        await until(bench.backend.is_usable)
        assert bench.backend.client is bench.clients[-1]
        assert bench.backend.connects == 2
        tasks.cancel_all()
        await tasks.join()

    async def test_a_wake_ends_a_pause(self) -> None:
        bench, tasks = Bench(backoff=hours), TaskSet("test")
        bench.next_client = lambda listener: FakeClient(listener, refuses=True)
        tasks.start(bench.backend.run(), name="run")
        await until(lambda: bench.backend.last_error)
        bench.backend.wake()
        await until(lambda: len(bench.clients) == 2)
        bench.next_client = lambda listener: FakeClient(listener, capabilities=record("m"))
        bench.backend.wake()
        await until(bench.backend.is_usable)
        tasks.cancel_all()
        await tasks.join()

    async def test_a_wake_during_an_attempt_is_not_lost(self) -> None:
        bench, tasks = Bench(backoff=hours), TaskSet("test")

        class TooEarly(FakeClient):
            async def connect(self) -> None:
                bench.backend.wake()
                bench.next_client = lambda listener: FakeClient(listener, capabilities=record("m"))
                raise ConnectError("fake", "refused")

        bench.next_client = TooEarly
        tasks.start(bench.backend.run(), name="run")
        await until(bench.backend.is_usable)
        assert len(bench.clients) == 2
        tasks.cancel_all()
        await tasks.join()

    async def test_a_worker_that_accepts_and_dies_at_once_is_not_hammered(self) -> None:
        bench, tasks = Bench(backoff=hours), TaskSet("test")
        bench.next_client = lambda listener: FakeClient(listener, capabilities=record("m"))
        tasks.start(bench.backend.run(), name="run")
        await until(bench.backend.is_usable)
        bench.clients[0].lose()
        await turns(20)
        assert len(bench.clients) == 1, "its connection lived for no second: a pause comes first"
        bench.backend.wake()
        await until(bench.backend.is_usable)
        bench.clock.advance(1.0)
        bench.clients[1].lose()
        await until(bench.backend.is_usable)
        assert len(bench.clients) == 3, "this one lived: no pause"
        tasks.cancel_all()
        await tasks.join()

    async def test_a_pause_ends_with_an_attempt_that_fails(self) -> None:
        bench, tasks = Bench(), TaskSet("test")

        class Full(FakeClient):
            async def capabilities(self, timeout: float = 5.0) -> CapabilityRecord | None:
                bench.backend.on_pressure(0, 2, 60_000)
                bench.next_client = lambda listener: FakeClient(listener, capabilities=record("m"))
                raise TimeoutError

        bench.next_client = Full
        tasks.start(bench.backend.run(), name="run")
        await until(bench.backend.is_usable)
        assert bench.backend.has_room()
        assert bench.clock.pending == 0
        tasks.cancel_all()
        await tasks.join()

    async def test_a_connection_lost_while_it_is_asked(self) -> None:
        bench, tasks = Bench(), TaskSet("test")

        class Dying(FakeClient):
            async def capabilities(self, timeout: float = 5.0) -> CapabilityRecord | None:
                self.lose()
                return record("m")

        bench.next_client = Dying
        tasks.start(bench.backend.run(), name="run")
        await until(lambda: len(bench.clients) > 2)
        assert bench.backend.connects == 0
        bench.next_client = lambda listener: FakeClient(listener, capabilities=record("m"))
        await until(bench.backend.is_usable)
        tasks.cancel_all()
        await tasks.join()

    async def test_a_silent_worker_is_tried_again(self) -> None:
        bench, tasks = Bench(), TaskSet("test")

        class Silent(FakeClient):
            async def capabilities(self, timeout: float = 5.0) -> CapabilityRecord | None:
                raise TimeoutError

        bench.next_client = Silent
        tasks.start(bench.backend.run(), name="run")
        await until(lambda: len(bench.clients) > 1)
        assert bench.backend.last_error == "it does not say what it serves"
        assert not bench.backend.known
        tasks.cancel_all()
        await tasks.join()

    async def test_a_surprise_does_not_end_the_loop(self, caplog: pytest.LogCaptureFixture) -> None:
        bench, tasks = Bench(), TaskSet("test")

        class Odd(FakeClient):
            async def connect(self) -> None:
                raise ZeroDivisionError

        bench.next_client = Odd
        tasks.start(bench.backend.run(), name="run")
        await until(lambda: len(bench.clients) > 1)
        assert bench.backend.last_error == "ZeroDivisionError"
        assert "failed unexpectedly" in caplog.text
        tasks.cancel_all()
        await tasks.join()

    async def test_models_that_come_later_are_found(self) -> None:
        bench, tasks = Bench(refresh_interval=0.005), TaskSet("test")
        bench.next_client = lambda listener: FakeClient(listener, capabilities=record("m"))
        tasks.start(bench.backend.run(), name="run")
        await until(bench.backend.is_usable)
        assert not bench.backend.serves("lora", CHAT)
        bench.clients[0].record = record("m", "lora")
        await until(lambda: bench.backend.serves("lora", CHAT))
        # A refresh that says nothing, or fails, takes nothing away.
        bench.clients[0].record = None
        asked = bench.clients[0].asked
        await until(lambda: bench.clients[0].asked > asked)
        assert bench.backend.serves("lora", CHAT)
        tasks.cancel_all()
        await tasks.join()

    async def test_a_refresh_without_an_answer_ends_nothing(self) -> None:
        bench, tasks = Bench(refresh_interval=0.005), TaskSet("test")

        class Stalling(FakeClient):
            async def capabilities(self, timeout: float = 5.0) -> CapabilityRecord | None:
                self.asked += 1
                if self.asked > 1:
                    raise TimeoutError
                return record("m")

        bench.next_client = Stalling
        tasks.start(bench.backend.run(), name="run")
        await until(lambda: bench.clients and bench.clients[0].asked > 3)
        assert bench.backend.is_usable()
        assert bench.backend.serves("m", CHAT)
        tasks.cancel_all()
        await tasks.join()

    async def test_a_connection_lost_during_a_refresh(self) -> None:
        bench, tasks = Bench(refresh_interval=0.005), TaskSet("test")

        class Dying(FakeClient):
            async def capabilities(self, timeout: float = 5.0) -> CapabilityRecord | None:
                self.asked += 1
                if self.asked == 1:
                    return record("m")
                self.lose()
                return record("too late")

        bench.next_client = Dying
        tasks.start(bench.backend.run(), name="run")
        await until(lambda: bench.backend.connects > 1)
        assert bench.backend.serves("m", CHAT)
        assert not bench.backend.serves("too late", CHAT)
        tasks.cancel_all()
        await tasks.join()

    async def test_a_list_that_cannot_be_read_is_as_good_as_none(self) -> None:
        bench, tasks = Bench(), TaskSet("test")

        class Odd(FakeClient):
            async def capabilities(self, timeout: float = 5.0) -> CapabilityRecord | None:
                return CapabilityRecord.from_models_list(b'{"data":7}')

        bench.next_client = Odd
        tasks.start(bench.backend.run(), name="run")
        await until(bench.backend.is_usable)
        assert bench.backend.record is None
        assert bench.backend.known
        tasks.cancel_all()
        await tasks.join()

    async def test_only_short_connections_are_followed_by_a_pause(self) -> None:
        bench, tasks = Bench(), TaskSet("test")
        bench.next_client = lambda listener: FakeClient(listener, refuses=True)
        refusals, flaps = bench.backend._refusals, bench.backend._flaps
        tasks.start(bench.backend.run(), name="run")
        await until(lambda: refusals.failures >= 3)
        bench.next_client = lambda listener: FakeClient(listener, capabilities=record("m"))
        await until(bench.backend.is_usable)
        assert refusals.failures == 0, "it is there again: nothing to be patient about"
        for count in (1, 2):
            bench.clients[-1].lose()
            await until(bench.backend.is_usable)
            assert flaps.failures == count
        bench.clock.advance(1.0)
        bench.clients[-1].lose()
        await until(bench.backend.is_usable)
        assert flaps.failures == 0
        tasks.cancel_all()
        await tasks.join()


async def test_waiting_leaves_no_task_behind() -> None:
    before = len(asyncio.all_tasks())
    bench, tasks = Bench(), TaskSet("test")
    bench.next_client = lambda listener: FakeClient(listener, refuses=True)
    tasks.start(bench.backend.run(), name="run")
    await until(lambda: bench.clients)
    tasks.cancel_all()
    await tasks.join()
    assert len(asyncio.all_tasks()) == before
