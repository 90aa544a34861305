"""The bounded queue in front of the workers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from itertools import count
from typing import Generic, TypeVar

__all__ = ["AdmissionQueue"]

T = TypeVar("T", bound=Hashable)
W = TypeVar("W")


class AdmissionQueue(Generic[T]):
    """First come, first served, among the requests that can be served now.

    Requests wait in lanes, one for each kind of worker they need. A lane whose workers are all
    busy holds up nobody in another lane; within a lane the order of arrival is kept.
    """

    __slots__ = ("_arrivals", "_lanes", "_places")

    def __init__(self) -> None:
        #: lane -> request -> order of arrival, which is negative for those put in front.
        self._lanes: dict[Hashable, OrderedDict[T, int]] = {}
        self._places: dict[T, Hashable] = {}
        self._arrivals = count(1)

    def __repr__(self) -> str:
        return f"<AdmissionQueue [{len(self)} waiting in {len(self._lanes)} lanes]>"

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, request: T) -> bool:
        return request in self._places

    def __iter__(self) -> Iterator[T]:
        """Iterate over a copy, lane by lane: the queue may change meanwhile."""
        return iter(tuple(self._places))

    def push(self, request: T, lane: Hashable) -> None:
        """Add a request at the end of its lane."""
        self._lanes.setdefault(lane, OrderedDict())[request] = next(self._arrivals)
        self._places[request] = lane

    def push_front(self, request: T, lane: Hashable) -> None:
        """Put a request that has waited before in front of its lane, and of all others."""
        requests = self._lanes.setdefault(lane, OrderedDict())
        requests[request] = -next(self._arrivals)
        requests.move_to_end(request, last=False)
        self._places[request] = lane

    def discard(self, request: T) -> None:
        """Forget a request, if it waits here."""
        lane = self._places.pop(request, None)
        if lane is None:
            return
        requests = self._lanes[lane]
        del requests[request]
        if not requests:
            del self._lanes[lane]

    def take(self, pick: Callable[[T], W | None]) -> Iterator[tuple[T, W]]:
        """Remove the requests for which `pick` finds a worker, oldest first, and yield both.

        `pick` sees what was taken before: it is called again after each one. Once it finds nothing
        for the head of a lane, the rest of that lane is not asked about.
        """
        open_lanes = dict.fromkeys(self._lanes)
        while open_lanes:
            lane = min(open_lanes, key=self._head_arrival)
            request = next(iter(self._lanes[lane]))
            worker = pick(request)
            if worker is None:
                del open_lanes[lane]
                continue
            self.discard(request)
            if lane not in self._lanes:
                del open_lanes[lane]
            yield request, worker

    def _head_arrival(self, lane: Hashable) -> int:
        return next(iter(self._lanes[lane].values()))
