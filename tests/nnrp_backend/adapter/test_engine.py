from nnrp_backend.adapter.engine import (
    DropConnection,
    Engine,
    EngineConfigError,
    EngineDead,
    EngineInterrupted,
    EngineRequest,
    Pressure,
)
from nnrp_backend.adapter.sim import SimEngine
from tests.support.engines import ScriptedEngine


def test_errors_say_which_engine_and_why() -> None:
    dead = EngineDead("vllm", "signal 9")
    assert (str(dead), dead.engine, dead.reason) == (
        "the vllm engine died: signal 9",
        "vllm",
        "signal 9",
    )
    config = EngineConfigError("sim", "no flags")
    assert (str(config), config.engine, config.reason) == (
        "sim engine: no flags",
        "sim",
        "no flags",
    )
    interrupted = EngineInterrupted("vllm")
    assert isinstance(interrupted, EngineConfigError)
    assert str(interrupted) == "vllm engine: interrupted while the model was loading"
    assert "dropped" in str(DropConnection())


def test_a_request_is_ordinary_unless_it_says_otherwise() -> None:
    request = EngineRequest("id", "chat.completions.create", {}, False)
    assert (request.priority, request.traceparent) == (0, None)


def test_pressure_admits_what_it_does_not_know() -> None:
    assert Pressure(1, 2) == (1, 2, 0, None)


async def test_engines_have_the_interface() -> None:
    engines: list[Engine] = [SimEngine(), ScriptedEngine()]
    assert [engine.name for engine in engines] == ["sim", "scripted"]
