from __future__ import annotations

from typing import List

from unified_ipu.device import WeightCopies


def test_a_copy_makes_the_host_current_and_counts_as_a_version() -> None:
    copies = WeightCopies()
    log: List[str] = []
    stale = [copies.host_is_stale]
    copies.device_trained()
    stale.append(copies.host_is_stale)
    copies.to_host(lambda: log.append("to host"))
    stale.append(copies.host_is_stale)
    assert (stale, log, copies.version) == ([False, True, False], ["to host"], 1)


def test_an_upload_makes_the_host_the_truth() -> None:
    copies = WeightCopies()
    log: List[str] = []
    copies.device_trained()
    copies.to_device(lambda: log.append("to device"))
    assert not copies.host_is_stale
    assert log == ["to device"]


def test_the_copy_may_read_the_host_without_starting_another() -> None:
    copies = WeightCopies()
    copies.device_trained()
    seen: List[bool] = []
    copies.to_host(lambda: seen.append(copies.host_is_stale))
    assert seen == [False]
