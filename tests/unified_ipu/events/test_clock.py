from __future__ import annotations

import pytest

from unified_ipu.events import PhaseClock, clock as clock_module


@pytest.fixture
def time(monkeypatch):
    now = {"seconds": 0.0}
    monkeypatch.setattr(clock_module, "perf_counter", lambda: now["seconds"])
    return now


def test_an_inner_phase_pauses_the_outer_one(time):
    clock = PhaseClock()
    time["seconds"] = 1.0
    with clock.phase("compute"):
        time["seconds"] = 3.0
        with clock.phase("data"):
            time["seconds"] = 7.0
        time["seconds"] = 8.0
    time["seconds"] = 10.0
    assert clock.seconds() == {"other": 3.0, "compute": 3.0, "data": 4.0}


def test_shares_add_up_to_the_wall_time_also_after_an_error(time):
    clock = PhaseClock()

    def fail():
        with clock.phase("compute"):
            time["seconds"] = 2.0
            raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        fail()
    time["seconds"] = 5.0
    assert clock.seconds() == {"other": 3.0, "compute": 2.0}


def test_time_can_be_booked_elsewhere(time):
    clock = PhaseClock()
    with clock.phase("communication"):
        time["seconds"] = 2.0
    clock.move("communication", "waiting", 1.5)
    assert clock.seconds() == {"communication": 0.5, "waiting": 1.5}


def test_a_stretch_of_time_has_its_own_phases(time):
    clock = PhaseClock()
    with clock.phase("data"):
        time["seconds"] = 2.0
    mark = clock.mark()
    with clock.phase("compute"):
        time["seconds"] = 5.0
        with clock.phase("data"):
            time["seconds"] = 6.0
    assert clock.since(mark) == {"data": 1.0, "compute": 3.0}
    assert clock.seconds() == {"data": 3.0, "compute": 3.0}
