"""When the device had a step's results, told on the host's clock."""

from bakeoff.reference_engine.engine.runner import DeviceClock


class Event:
    def __init__(self, world: "World", at_s: float) -> None:
        self.world, self.at_s = world, at_s

    def query(self) -> bool:
        return self.world.now_s >= self.at_s

    def synchronize(self) -> None:
        self.world.now_s = max(self.world.now_s, self.at_s)

    def elapsed_time(self, end_event: "Event") -> float:
        return (end_event.at_s - self.at_s) * 1e3


class World:
    now_s = 0.0


def test_steps_end_when_the_device_had_them_however_late_the_host_asks():
    world = World()
    clock = DeviceClock(lambda: world.now_s)
    assert clock.wait(Event(world, 0.005)) == 0.005
    late = Event(world, 0.010)
    world.now_s = 0.058  # it launched a long step meanwhile
    assert abs(clock.wait(late) - 0.010) < 1e-9
    assert world.now_s == 0.058
    assert clock.wait(Event(world, 0.080)) == 0.080


def test_without_a_wait_the_clocks_cannot_be_compared():
    world = World()
    world.now_s = 0.050
    assert DeviceClock(lambda: world.now_s).wait(Event(world, 0.010)) == 0.050


def test_no_step_ends_after_it_was_asked_for():
    world = World()
    clock = DeviceClock(lambda: world.now_s)
    fast = Event(world, 0.005)
    clock.wait(fast)
    fast.at_s -= 0.100  # the device's clock drifts
    late = Event(world, 0.020)
    world.now_s = 0.021
    assert clock.wait(late) == 0.021
