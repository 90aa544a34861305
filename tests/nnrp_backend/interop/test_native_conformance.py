"""The conformance runner against the published runtime's server (`nnrp-py`, in a child process).

That server knows no profile: its events have no `type`, which must be found. Everything else, the
cancel and the credit among it, goes as with any foreign target.
"""

from functools import partial
from pathlib import Path

from nnrp_backend.client import NnrpClient
from nnrp_backend.conformance.planner import Plan, PlannedCase
from nnrp_backend.conformance.recipe import TerminalState
from nnrp_backend.conformance.runner import Played, play_all
from tests.support.native import native_server
from tests.support.recordings import planned


async def played(peer_url: str, case: PlannedCase) -> Played:
    connect = partial(NnrpClient, peer_url)
    (one,) = [one async for one in play_all(Plan("native", (case,)), connect, timeout=20)]
    return one


def said(one: Played) -> list[str]:
    assert one.verdict is not None, one.reason
    return [str(finding) for finding in one.verdict.findings]


async def test_a_foreign_answer_is_read_and_judged(tmp_path: Path) -> None:
    url = f"unix://{tmp_path}/w.sock"

    async with native_server(url):
        one = await played(url, planned(envelope={"n": 2}))

    assert said(one) == [
        "event-json: event 1 has no `type`",
        "event-json: event 2 has no `type`",
        "event-fields: the terminal: response.completed: body must be an object",
    ]


async def test_a_foreign_target_is_cancelled_on_the_wire(tmp_path: Path) -> None:
    url = f"unix://{tmp_path}/w.sock"
    case = planned(
        nnrp={"cancel_after_events": 2},
        envelope={"n": 2, "hold": True},
        terminal=TerminalState.CANCELLED,
    )

    async with native_server(url, negotiate=True) as peer:
        one = await played(url, case)
        (submit, *_) = await peer.wait_for(lambda report: report["event"] == "submit")

    assert said(one) == ["event-json: event 1 has no `type`", "event-json: event 2 has no `type`"]
    assert peer.seen("runtime", type="CANCEL", operation=submit["operation"])
    # The envelope's own hint is for our endpoints alone.
    assert '"credit"' not in submit["body"]
