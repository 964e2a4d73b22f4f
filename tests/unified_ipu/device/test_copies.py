from __future__ import annotations

from typing import List

from unified_ipu.device import Leaf, Mismatch, WeightCopies, first_mismatch


def test_weights_are_fetched_once_after_training_and_not_again() -> None:
    copies = WeightCopies()
    log: List[str] = []
    assert not copies.to_host_if_stale(lambda: log.append("to host"))
    copies.device_trained()
    assert copies.to_host_if_stale(lambda: log.append("to host"))
    assert not copies.to_host_if_stale(lambda: log.append("to host"))
    assert (log, copies.version) == (["to host"], 1)


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


def test_the_first_difference_of_a_call_is_named() -> None:
    compiled = [Leaf("x", (2, 4), "float32"), Leaf("y", (2,), "int32")]
    assert first_mismatch(compiled, list(compiled)) is None
    assert first_mismatch(compiled, compiled[:1]) == Mismatch("count", "", 2, 1)
    other = [compiled[0], Leaf("y", (3,), "int32")]
    assert first_mismatch(compiled, other) == Mismatch("shape", "y", (2,), (3,))
    found = first_mismatch([compiled[0]], [Leaf("x", (2, 4), "int64")])
    assert str(found) == "dtype of x: expected float32 but got int64"
