"""Updates of a whole call against the formulas of the fact sheets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List

import numpy as np
import pytest

from unified_ipu.device import (
    CallShape,
    Fabric,
    Position,
    Reduction,
    connect_fabric,
    fabric_of,
    train,
)
from unified_ipu.device.fabric import Alone
from unified_ipu.errors import ConfigError


@dataclass(frozen=True)
class NumpyArithmetic:
    accumulators: str = "float64"

    def start(self, gradient: Any) -> Any:
        return np.array(gradient, dtype=self.accumulators)

    def add(self, total: Any, value: Any) -> Any:
        return (total + value).astype(self.accumulators)

    def scale(self, value: Any, factor: float) -> Any:
        return (value * factor).astype(value.dtype)

    def finish(self, total: Any, factor: float) -> Any:
        return np.asarray(total, dtype=np.float64) * factor

    def across(self, total: Any, fabric: Fabric) -> Any:
        return fabric.sum(total)


# g[a, r] of one update of two accumulation steps on three replicas.
GRADIENTS = np.array([[1.0, 2.0, 4.0], [8.0, 16.0, 32.0]])


class Links:
    rank, size = 1, 2

    def __init__(self) -> None:
        self.names: List[str] = []

    def sum(self, array: Any, name: str = "") -> Any:
        self.names.append(name)
        return array * 2.0


def one_update(reduction: Reduction, **settings: Any) -> float:
    found: List[Dict[str, Any]] = []
    scale = settings.get("loss_scale", 1.0)
    train(
        CallShape(accumulation=2, replicas=3),
        reduction,
        lambda p: {"w": GRADIENTS[p.step, p.replica] * scale},
        found.append,
        arithmetic=NumpyArithmetic(),
        **settings,
    )
    assert len(found) == 1
    return float(found[0]["w"])


@pytest.mark.parametrize(
    ("accumulation", "replicas", "expected"),
    [
        ("sum", "sum", 63.0),
        ("mean_post", "mean", 10.5),
        ("mean_running", "mean", 10.5),
        ("mean_scaled", "sum", 31.5),  # R times the mean, as under IPUStrategyV1
        ("sum", "mean", 21.0),
    ],
)
@pytest.mark.parametrize("loss_scale", [1.0, 1024.0])
def test_gradients_are_reduced_as_the_setting_says_and_the_loss_scale_is_gone(
    accumulation: str, replicas: str, expected: float, loss_scale: float
) -> None:
    assert one_update(Reduction(accumulation, replicas), loss_scale=loss_scale) == pytest.approx(
        expected, rel=1e-15
    )


@pytest.mark.parametrize(
    ("kind", "replicas", "expected"), [("mean_post", "mean", 10.5), ("sum", "sum", 126.0)]
)
def test_a_mean_divides_by_the_replicas_of_all_processes(
    kind: str, replicas: str, expected: float
) -> None:
    # The other process sends the same gradients: the mean stays, the sum doubles.
    links = Links()
    assert one_update(Reduction(kind, replicas), fabric=links) == pytest.approx(expected)
    assert links.names == ["w"]


def test_float16_accumulators_overflow_when_they_sum_and_not_when_they_average() -> None:
    def run(kind: str) -> float:
        found: List[Dict[str, Any]] = []
        train(
            CallShape(accumulation=4),
            Reduction(kind, "mean"),
            lambda _: {"w": np.float32(30000.0)},
            found.append,
            arithmetic=NumpyArithmetic("float16"),
        )
        return float(found[0]["w"])

    with np.errstate(over="ignore"):
        assert run("mean_post") == float("inf")
    assert run("mean_running") == pytest.approx(30000.0, rel=1e-3)


def test_updates_of_one_call_run_in_sequence_with_the_weights_of_the_one_before() -> None:
    weight = np.float64(1.0)
    used: List[float] = []

    def micro_step(_: Position) -> Dict[str, Any]:
        used.append(float(weight))
        return {"w": 2.0 * weight}  # of w^2

    def apply(gradients: Dict[str, Any]) -> None:
        nonlocal weight
        weight -= 0.25 * gradients["w"]

    train(
        CallShape(iterations=3, accumulation=2),
        Reduction("mean_post", "mean"),
        micro_step,
        apply,
        arithmetic=NumpyArithmetic(),
    )
    assert used == [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]
    assert weight == 0.125


def test_a_parameter_that_only_one_replica_used_counts_as_zero_on_the_others() -> None:
    found: List[Dict[str, Any]] = []
    train(
        CallShape(replicas=2),
        Reduction("mean_post", "mean"),
        lambda p: {"a": 4.0} if p.replica else {"a": 2.0, "b": 1.0},
        found.append,
        arithmetic=NumpyArithmetic(),
    )
    assert found == [{"a": 3.0, "b": 0.5}]


@pytest.mark.parametrize("names", [("post", "mean"), ("sum", "post")])
def test_an_unknown_reduction_is_refused(names: tuple) -> None:
    with pytest.raises(ConfigError, match="post"):
        Reduction(*names)


def test_several_processes_without_links_are_refused() -> None:
    assert isinstance(fabric_of(1), Alone)
    with pytest.raises(ConfigError, match="process 1 of 2, but nothing links"):
        fabric_of(2, 1)


def test_links_must_be_those_of_the_native_settings() -> None:
    links = Links()
    connect_fabric(links)
    try:
        assert fabric_of(2, 1) is links
        with pytest.raises(ConfigError, match=r"process 0 of 4, the links say 1 of 2"):
            fabric_of(4, 0)
    finally:
        connect_fabric(None)
