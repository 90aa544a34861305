"""One request being answered: its choices, its pace, and the faults that its script asks for."""

import asyncio
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any, Final

from nnrp_backend.adapter.engine import DropConnection
from nnrp_backend.adapter.sim.answers import Answer, count_words
from nnrp_backend.adapter.sim.directives import Script
from nnrp_backend.adapter.sim.generation import Generation, Piece
from nnrp_backend.adapter.sim.request import ChatRequest
from nnrp_backend.adapter.sim.steps import StepClock, StepClocks
from nnrp_backend.profile.errors import ErrorCode, ProfileError

BURST: Final = 16
"""Steps that a stream without delay takes before it lets others run."""

OVERLOAD_RETRY_MS: Final = 1000
_RETRYABLE: Final = frozenset(
    {ErrorCode.BACKEND_OVERLOAD, ErrorCode.SCHEDULER_REJECTED, ErrorCode.RATE_LIMIT_EXCEEDED}
)


class Run:
    """Iterate over `steps`, awaiting `begin` before them and `pace` after each."""

    def __init__(
        self, request: ChatRequest, script: Script, answer: Answer, clocks: StepClocks
    ) -> None:
        self.choices = [
            Generation(answer, limit=request.limit, stops=request.stops)
            for _ in range(request.n or 1)
        ]
        self.steps_taken = 0
        self._prompt_tokens = sum(count_words(message.text()) for message in request.messages)
        self._script = script
        self._clock: StepClock | None = None
        if script.delay_ms:
            self._clock = clocks.get(script.delay_ms / 1000)

    def __repr__(self) -> str:
        return f"<Run [{len(self.choices)} choices, {self.steps_taken} steps]>"

    async def begin(self) -> None:
        """Wait for the first step.

        Raises:
            ProfileError, DropConnection: the script asks for a fault before the first token.
        """
        script = self._script
        if script.hang:
            await asyncio.get_running_loop().create_future()
        if script.first_ms:
            await asyncio.sleep(script.first_ms / 1000)
        if self._clock is not None:
            await self._clock.step()
        self._fail_if_due()

    async def pace(self) -> None:
        """Wait for the next step.

        Raises:
            ProfileError, DropConnection: the script asks for a fault after this many tokens.
        """
        self.steps_taken += 1
        if self._clock is not None:
            await self._clock.step()
        elif self.steps_taken % BURST == 0 or self._fault_is_due():
            # What was produced leaves before a fault: a dying worker has sent its tokens.
            await asyncio.sleep(0)
        self._fail_if_due()

    def steps(self) -> Iterator[list[tuple[int, Piece]]]:
        """Iterate over what each step adds, as pairs of choice index and piece."""
        if len(self.choices) == 1:  # nearly always, and a load test feels the difference
            for piece in self.choices[0]:
                yield [(0, piece)]
            return
        for pieces in zip_longest(*self.choices):
            yield [(index, piece) for index, piece in enumerate(pieces) if piece is not None]

    def usage(self) -> dict[str, Any]:
        """Return the token counts so far, in chat's own names."""
        made = sum(choice.tokens for choice in self.choices)
        usage: dict[str, Any] = {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": made,
            "total_tokens": self._prompt_tokens + made,
        }
        if reasoning := sum(choice.reasoning_tokens for choice in self.choices):
            usage["completion_tokens_details"] = {"reasoning_tokens": reasoning}
        return usage

    def _fault_is_due(self) -> bool:
        script, taken = self._script, self.steps_taken
        return taken == script.die_after or (
            script.error is not None and taken == script.error_after
        )

    def _fail_if_due(self) -> None:
        if not self._fault_is_due():
            return
        if self.steps_taken == self._script.die_after:
            raise DropConnection
        raise scripted_error(self._script.error or ErrorCode.BACKEND_ERROR)


def scripted_error(code: ErrorCode) -> ProfileError:
    """Return the error that a script or the model `backend-error` asks for."""
    retry_after_ms = OVERLOAD_RETRY_MS if code in _RETRYABLE else None
    return ProfileError(code, f"the sim engine was asked to fail with {code}",
                        retry_after_ms=retry_after_ms)  # fmt: skip
