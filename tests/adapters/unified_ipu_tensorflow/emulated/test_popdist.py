"""``PopDistStrategy`` on one of two instances, the other one a twin that feeds the same rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.adapters.unified_ipu_tensorflow.emulated.emulating import (
    RATE,
    X,
    Y,
    batches,
    gradient_of,
    keras,
    line,
    mse,
    sgd,
)
from unified_ipu.device import connect_fabric
from unified_ipu.errors import ConfigError
from unified_ipu.world import PopDist
from unified_ipu_tensorflow.emulated import ipu, popdist

pytestmark = pytest.mark.timeout(120)


class Twin:
    """The links of instance 1: instance 0 begins with w = 1, at the same rate and gradients."""

    rank, size = 1, 2

    def sum(self, array: Any, name: str = "") -> Any:
        if array.any():
            return 2.0 * array
        is_number = array.ndim == 0 and array.dtype.kind == "f"
        return np.full_like(array, RATE) if is_number else np.ones_like(array)


@pytest.fixture
def strategy():
    popdist.tell(PopDist(1, 2, 2, 4, 1))
    connect_fabric(Twin())
    ipu.config.reset_ipu_configuration()
    config = ipu.config.IPUConfig()
    assert popdist.tensorflow.set_ipu_config(config, ipus_per_replica=1) is config
    config.configure_ipu_system()
    yield ipu.distributed.popdist_strategy.PopDistStrategy()
    connect_fabric(None)
    popdist.tell(PopDist(0, 1, 1, 1, 1))
    ipu.config.reset_ipu_configuration()


def trained(strategy: Any, loss: Any, regularizer: Any = None) -> Any:
    """One update of two replicas here and two there, from the weight of the first."""
    with strategy.scope():
        model = line(regularizer=regularizer)
        model.compile(sgd(), loss, steps_per_execution=2)
        model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=2)
        model.set_replication_options(replicated_metric_reduction_method="SUM")
        history = model.fit(batches(4), verbose=0).history
    return gradient_of(model), float(history["loss"][-1])


def test_this_instance_has_its_part_of_the_devices(strategy):
    found = ipu.config.get_ipu_config()
    assert found.auto_select_ipus == 2
    assert found.experimental.multi_replica_distribution.process_count == 2
    assert found.experimental.multi_replica_distribution.process_index == 1
    assert strategy.num_replicas_in_sync == popdist.getNumTotalReplicas() == 4
    assert popdist.isBackendInitialized()


def test_means_are_divided_by_all_replicas_and_then_summed(strategy):
    # Two steps of four replicas; each mean has a gradient whose mean is 187.
    gradient, loss = trained(strategy, mse())
    assert gradient == pytest.approx(2 * 187, rel=1e-4)
    assert loss == pytest.approx(2 * 93.5, rel=1e-5)  # of two replicas, the mean of two steps


def test_variables_begin_as_those_of_the_first_and_are_their_instances_own_then(strategy):
    with strategy.scope():
        begin = keras.initializers.Constant(7.0)
        dense = keras.layers.Dense(1, use_bias=False, kernel_initializer=begin)
        model = keras.Sequential([keras.Input((1,)), dense])
        assert model.get_weights()[0].tolist() == [[1.0]]
        model.set_weights([np.full((1, 1), 5.0)])
        model.compile(sgd(), mse(), steps_per_execution=2)
        model.fit(batches(4, 0.0 * X, Y), verbose=0)  # hardly a gradient
    assert model.get_weights()[0] == pytest.approx(5.0, abs=0.01)


def test_sums_are_not_divided_and_reported_as_many_times_as_there_are_replicas(strategy):
    gradient, loss = trained(strategy, mse("sum"))
    assert gradient == pytest.approx(2 * 2992, rel=1e-4)
    assert loss == pytest.approx(4 * 1496 / 2, rel=1e-5)


def test_terms_of_the_model_are_divided_by_all_replicas_and_reported_whole(strategy):
    # The gradient of 0.5 w^2 is 1: two steps, four replicas, divided by 4.
    gradient, loss = trained(strategy, mse("sum"), keras.regularizers.L2(0.5))
    assert gradient == pytest.approx(2 * 2992 + 2, abs=0.5)
    assert loss == pytest.approx(4 * 1496 / 2 + 2 * 0.5, rel=1e-5)


def test_what_several_processes_cannot_do_here_is_refused(strategy):
    with pytest.raises(NotImplementedError, match="cross_replica_reductions"):
        type(strategy)(add_ipu_cross_replica_reductions=False)
    with strategy.scope():
        model = line()
        model.compile(sgd(), mse(), steps_per_execution=2)
        with pytest.raises(NotImplementedError, match="use predict"):
            model.evaluate(X, Y, batch_size=4)
        assert model.predict(X, batch_size=4).shape == (16, 1)
        connect_fabric(None)
        with pytest.raises(ConfigError, match="nothing links"):
            model.fit(batches(4), verbose=0)
