import json

import pytest

from nnrp_backend.client import CacheUse, Diagnostics, EnginePressure, read_diagnostics
from nnrp_backend.profile.errors import ErrorCode, ProfileError
from nnrp_backend.profile.events import decode_event

SAID = {
    "queue_delay_ms": 1.5,
    "transport": "unix",
    "engine": "sim",
    "pressure": {"running": 1, "waiting": 2, "capacity": 8, "kv_usage": None},
    "retry_reason": None,
    "cache": {"cached_tokens": 16},
}


def event(**diagnostics):
    body = {"type": "response.diagnostics", "diagnostics": diagnostics}
    return decode_event(json.dumps(body).encode())


@pytest.mark.parametrize("strict", [False, True])
def test_what_a_worker_of_ours_says(strict):
    said = read_diagnostics(event(**SAID), strict=strict)
    assert said.queue_delay_ms == 1.5
    assert (said.transport, said.engine, said.retry_reason) == ("unix", "sim", None)
    assert said.pressure.running == 1
    assert said.pressure.waiting == 2
    assert said.pressure.capacity == 8
    assert said.cache.cached_tokens == 16


@pytest.mark.parametrize("strict", [False, True])
def test_what_is_not_said(strict):
    said = read_diagnostics(event(), strict=strict)
    assert (said.queue_delay_ms, said.pressure, said.cache) == (None, None, None)


@pytest.mark.parametrize(
    "unknown",
    [
        {"gpu": "H200"},
        {"pressure": {"running": 1, "waiting": 2, "swapped": 3}},
        {"cache": {"cached_tokens": 16, "blocks": 1}},
    ],
    ids=str,
)
def test_what_is_not_known_is_ignored_unless_strict_is_asked(unknown):
    said = read_diagnostics(event(**SAID | unknown))
    assert said.transport == "unix"
    assert (said.pressure.running, said.cache.cached_tokens) == (1, 16)
    with pytest.raises(ProfileError, match="unknown field") as caught:
        read_diagnostics(event(**SAID | unknown), strict=True)
    assert caught.value.code == ErrorCode.ADAPTER_RUNTIME_ERROR


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("wrong", [{"queue_delay_ms": "long"}, {"pressure": []}], ids=str)
def test_a_known_member_of_the_wrong_type(wrong, strict):
    with pytest.raises(ProfileError, match="malformed diagnostics"):
        read_diagnostics(event(**SAID | wrong), strict=strict)


def test_the_types_are_public():
    assert Diagnostics(pressure=EnginePressure(running=0, waiting=0)).cache is None
    assert CacheUse(cached_tokens=1).cached_tokens == 1
