from hypothesis import given
from hypothesis import strategies as st

from gateway.pool.admission import AdmissionQueue


def queue(*requests: str) -> AdmissionQueue[str]:
    """A queue of requests; the first letter of each is its lane."""
    waiting: AdmissionQueue[str] = AdmissionQueue()
    for request in requests:
        waiting.push(request, request[0])
    return waiting


def taken(waiting: AdmissionQueue[str], *lanes: str, room: int = 100) -> list[str]:
    """Take what fits workers with `room` that serve these lanes."""
    left = [room]

    def pick(request: str) -> str | None:
        return "worker" if request[0] in lanes and left[0] > 0 else None

    requests = []
    for request, worker in waiting.take(pick):
        assert worker == "worker"
        left[0] -= 1
        requests.append(request)
    return requests


def test_first_come_first_served_across_lanes() -> None:
    waiting = queue("a1", "b1", "a2", "b2")
    assert taken(waiting, "a", "b") == ["a1", "b1", "a2", "b2"]
    assert len(waiting) == 0


def test_a_blocked_lane_holds_up_nobody_else() -> None:
    waiting = queue("a1", "a2", "b1", "b2")
    assert taken(waiting, "b") == ["b1", "b2"]
    assert list(waiting) == ["a1", "a2"]


def test_room_that_ends_leaves_the_youngest_waiting() -> None:
    waiting = queue("a1", "b1", "a2")
    assert taken(waiting, "a", "b", room=2) == ["a1", "b1"]
    assert taken(waiting, "a", "b") == ["a2"]


def test_the_head_of_a_blocked_lane_is_asked_about_once() -> None:
    waiting = queue("a1", "a2", "a3", "b1")
    asked: list[str] = []

    def pick(request: str) -> None:
        asked.append(request)

    assert list(waiting.take(pick)) == []
    assert asked == ["a1", "b1"]


def test_a_request_put_in_front_comes_before_all_others() -> None:
    waiting = queue("a1", "b1")
    waiting.push_front("b9", "b")
    waiting.push_front("c9", "c")
    assert taken(waiting, "a", "b", "c") == ["c9", "b9", "a1", "b1"]


def test_discarding() -> None:
    waiting = queue("a1", "a2", "b1")
    waiting.discard("a1")
    waiting.discard("b1")
    waiting.discard("never there")
    assert "a1" not in waiting
    assert "a2" in waiting
    assert taken(waiting, "a", "b") == ["a2"]


def test_repr_counts() -> None:
    assert repr(queue("a1", "a2", "b1")) == "<AdmissionQueue [3 waiting in 2 lanes]>"
    assert repr(queue()) == "<AdmissionQueue [0 waiting in 0 lanes]>"


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.booleans())))
def test_nobody_is_lost_or_served_twice(steps: list[tuple[str, bool, bool]]) -> None:
    waiting: AdmissionQueue[str] = AdmissionQueue()
    expected: set[str] = set()
    for number, (lane, front, discard) in enumerate(steps):
        request = f"{lane}{number}"
        (waiting.push_front if front else waiting.push)(request, lane)
        expected.add(request)
        if discard:
            victim = min(expected)
            waiting.discard(victim)
            expected.discard(victim)
    assert len(waiting) == len(expected)
    assert set(waiting) == expected
    served = taken(waiting, "a", "b", "c")
    assert sorted(served) == sorted(expected)
