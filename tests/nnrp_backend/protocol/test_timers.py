from nnrp_backend.protocol.timers import Timers


def test_nothing_is_due_when_nothing_is_armed():
    timers = Timers()
    assert timers.next() is None
    timers.run(1e9)
    timers.disarm("unknown")


def test_what_is_due_runs_once_and_in_order():
    timers, ran = Timers(), []
    timers.arm("late", 3.0, lambda now: ran.append(("late", now)))
    timers.arm("early", 1.0, lambda now: ran.append(("early", now)))
    timers.arm("later", 9.0, lambda now: ran.append(("later", now)))
    assert timers.next() == 1.0
    timers.run(0.5)
    assert ran == []
    timers.run(3.0)
    assert ran == [("early", 3.0), ("late", 3.0)]
    assert timers.next() == 9.0
    timers.run(3.0)
    assert len(ran) == 2


def test_arming_again_replaces():
    timers, ran = Timers(), []
    timers.arm("x", 1.0, lambda now: ran.append("first"))
    timers.arm("x", 2.0, lambda now: ran.append("second"))
    assert timers.next() == 2.0
    timers.run(5.0)
    assert ran == ["second"]


def test_disarmed_and_cleared_ones_do_not_run():
    timers, ran = Timers(), []
    timers.arm("x", 1.0, lambda now: ran.append("x"))
    timers.arm("y", 1.0, lambda now: ran.append("y"))
    timers.disarm("x")
    timers.run(2.0)
    assert ran == ["y"]
    timers.arm("z", 1.0, lambda now: ran.append("z"))
    timers.clear()
    assert timers.next() is None
    timers.run(2.0)
    assert ran == ["y"]


def test_an_action_may_arm_itself_and_disarm_others():
    timers, ran = Timers(), []

    def tick(now: float) -> None:
        ran.append(now)
        timers.arm("tick", now + 1.0, tick)
        timers.disarm("victim")

    timers.arm("tick", 1.0, tick)
    timers.arm("victim", 2.0, lambda now: ran.append(-1.0))
    timers.run(5.0)
    # The new tick is due at 6: it does not run in the same round.
    assert ran == [5.0]
    assert timers.next() == 6.0


def test_an_action_may_postpone_another():
    timers, ran = Timers(), []
    timers.arm("first", 1.0, lambda now: timers.arm("second", 9.0, lambda _: ran.append("second")))
    timers.arm("second", 2.0, lambda _: ran.append("too early"))
    timers.run(5.0)
    assert ran == []
    timers.run(9.0)
    assert ran == ["second"]
