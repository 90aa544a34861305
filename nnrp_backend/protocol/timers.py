"""Deadlines by name, for an object that has no clock."""

from collections.abc import Callable, Hashable

__all__ = ["Timers"]


class Timers:
    """A handful of named deadlines; the caller brings the time."""

    __slots__ = ("_armed",)

    def __init__(self) -> None:
        self._armed: dict[Hashable, tuple[float, Callable[[float], None]]] = {}

    def arm(self, name: Hashable, when: float, action: Callable[[float], None]) -> None:
        """Call ``action(now)`` at ``when``; replaces what ``name`` stood for."""
        self._armed[name] = (when, action)

    def disarm(self, name: Hashable) -> None:
        """Forget ``name``, if it is armed."""
        self._armed.pop(name, None)

    def clear(self) -> None:
        """Forget everything."""
        self._armed.clear()

    def next(self) -> float | None:
        """Return the earliest deadline, ``None`` when nothing is armed."""
        return min((when for when, _ in self._armed.values()), default=None)

    def run(self, now: float) -> None:
        """Act on everything due, earliest first."""
        due = sorted(
            (name for name, (when, _) in self._armed.items() if when <= now),
            key=lambda name: self._armed[name][0],
        )
        for name in due:
            # An earlier action may have disarmed or renewed a later one.
            armed = self._armed.get(name)
            if armed is not None and armed[0] <= now:
                del self._armed[name]
                armed[1](now)
