"""``IPUConfig``: defaults, checks of each attribute and of the whole."""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any
from unittest import mock

import pytest
import tensorflow as tf

from unified_ipu_tensorflow.emulated import install
from unified_ipu_tensorflow.emulated.ipu import config
from unified_ipu_tensorflow.emulated.ipu.config import (
    DeviceConnectionType,
    IPUConfig,
    SchedulingAlgorithm,
    SelectionOrder,
    StochasticRoundingBehaviour,
)


@pytest.fixture(autouse=True)
def _unconfigured():
    config.reset_ipu_configuration()
    yield
    config.reset_ipu_configuration()


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("auto_select_ipus", []),
        ("selection_order", SelectionOrder.AUTO),
        ("convolutions.poplar_options", {}),
        ("device_connection.type", DeviceConnectionType.ALWAYS),
        ("floating_point_behaviour.esr", StochasticRoundingBehaviour.OFF),
        ("io_tiles.available_memory_proportion", 0.9),
        ("norms.experimental.distributed_batch_norm_replica_group_size", 1),
        ("optimizations.math.dot_strength", True),
        ("optimizations.minimum_remote_tensor_size", 128),
        ("scheduling.algorithm", SchedulingAlgorithm.CHOOSE_BEST),
        ("scheduling.maximum_scheduler_search_space_size", 64),
        ("experimental.multi_replica_distribution.process_count", 0),
    ],
)
def test_defaults_are_those_of_the_sdk(path, expected):
    found = IPUConfig()
    for name in path.split("."):
        found = getattr(found, name)
    assert found == expected


def test_there_are_as_many_attributes_as_in_the_sdk():
    assert len(IPUConfig().to_dict()) == 57


def test_two_configurations_share_nothing():
    one, other = IPUConfig(), IPUConfig()
    one.matmuls.poplar_options["partialsType"] = "half"
    one.auto_select_ipus = 2
    assert other.matmuls.poplar_options == {}
    assert other.auto_select_ipus == []


@pytest.mark.parametrize(
    ("path", "value", "error", "words"),
    [
        ("auto_select_ipu", 1, ValueError, "did you mean 'auto_select_ipus'"),
        ("floating_point_behaviour.ers", True, ValueError, "floating_point_behaviour.esr"),
        ("replication_factor", 2, ValueError, "no attribute 'replication_factor'"),
        ("auto_select_ipus", "4", TypeError, "int or list or tuple, got str"),
        ("auto_select_ipus", ["4"], TypeError, "list of int"),
        ("allow_recompute", 1, TypeError, "bool, got int"),
        ("io_tiles.num_io_tiles", True, TypeError, "int, got bool"),
        ("floating_point_behaviour.esr", True, TypeError, "StochasticRoundingBehaviour"),
        ("io_tiles", {}, AttributeError, "is a category"),
        ("matmuls.poplar_options", {"availableMemoryProportion": 0.5}, ValueError, "strings"),
    ],
)
def test_attributes_are_checked_when_they_are_set(path, value, error, words):
    group = IPUConfig()
    *groups, name = path.split(".")
    for each in groups:
        group = getattr(group, each)
    with pytest.raises(error, match=words):
        setattr(group, name, value)


def configured(**settings):
    found = IPUConfig()
    for path, value in settings.items():
        group = found
        *groups, name = path.split("__")
        for each in groups:
            group = getattr(group, each)
        setattr(group, name, value)
    found.configure_ipu_system()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "no IPUs"),
        ({"auto_select_ipus": 3}, "power of two"),
        ({"auto_select_ipus": [1, 0]}, "power of two"),
        ({"auto_select_ipus": 2, "select_ipus": 4}, "only one of"),
        ({"select_ipus": 4}, "by its number"),
        ({"auto_select_ipus": 1, "device_connection__version": "ipu3"}, "has to be one of"),
        (
            {"auto_select_ipus": 1, "device_connection__type": DeviceConnectionType.NEVER},
            "needs a version",
        ),
        (
            {
                "auto_select_ipus": 1,
                "device_connection__type": DeviceConnectionType.PRE_COMPILE,
                "device_connection__version": "ipu2",
            },
            "runs nothing",
        ),
        (
            {
                "auto_select_ipus": 2,
                "norms__experimental__distributed_batch_norm_replica_group_size": 2,
                "io_tiles__num_io_tiles": 32,
            },
            "cannot be combined",
        ),
        (
            {
                "auto_select_ipus": 2,
                "norms__experimental__distributed_batch_norm_replica_group_size": 2,
            },
            "not emulated",
        ),
        (
            {
                "auto_select_ipus": 1,
                "experimental__multi_replica_distribution__process_count": 2,
                "experimental__multi_replica_distribution__process_index": 2,
            },
            r"\[0, 2\)",
        ),
    ],
)
def test_the_whole_is_checked_when_it_is_made_that_of_the_process(settings, words):
    with pytest.raises(ValueError, match=words):
        configured(**settings)
    with pytest.raises(RuntimeError, match="not configured"):
        config.get_ipu_config()


def test_another_configuration_resets_the_devices_with_a_warning_and_the_same_one_does_not():
    configured(auto_select_ipus=2)
    configured(auto_select_ipus=2)
    with pytest.warns(UserWarning, match="configured otherwise"):
        configured(auto_select_ipus=4)
    assert config.get_ipu_config().auto_select_ipus == 4
    other = IPUConfig()
    other.auto_select_ipus = 1
    with pytest.raises(RuntimeError, match="reset_configuration"):
        config.configure_ipu_system(other, reset_configuration=False)


def test_flags_are_known_and_change_no_result(monkeypatch):
    for flags in ("--executable_cache_path=/tmp/cache --use_ipu_model", ""):
        monkeypatch.setenv("TF_POPLAR_FLAGS", flags)
        configured(auto_select_ipus=1)
    for flags in ("--use_synthetic_data", "--synthetic_data_categories=infeed", "--no_such"):
        monkeypatch.setenv("TF_POPLAR_FLAGS", flags)
        with pytest.raises(ValueError, match=f"{flags} is not emulated"):
            configured(auto_select_ipus=1)


def test_an_int_is_one_device_and_a_list_is_one_for_each_entry():
    from unified_ipu_tensorflow.emulated.ipu import utils

    configured(auto_select_ipus=[1, 4])
    assert utils.get_num_of_ipus_in_device("/device:IPU:1") == 4
    with pytest.raises(ValueError, match="makes 2 device"):
        utils.get_num_of_ipus_in_device("/device:IPU:2")


def test_installed_it_is_where_scripts_look_for_it(monkeypatch):
    package: Any = sys.modules["keras"]
    monkeypatch.setattr(sys.modules["tensorflow.python"], "ipu", None, raising=False)
    for holder in (package, tf.keras):
        monkeypatch.setattr(holder, "ipu", None, raising=False)
    with mock.patch.dict(sys.modules):
        install()
        names = ["config", "ipu_strategy", "utils", "ops", "ops.pipelining_ops"]
        found = [importlib.import_module(f"tensorflow.python.ipu.{name}") for name in names]
        assert found[0] is config
        assert found[4].PipelineSchedule.Grouped.value == 0
        python: Any = importlib.import_module("tensorflow.python")
        assert python.ipu.utils is found[2]
        assert importlib.import_module("keras.ipu") is package.ipu is tf.keras.ipu
        assert package.ipu.__ipu__built__
        install()  # again changes nothing
    assert "tensorflow.python.ipu" not in sys.modules


def test_it_is_never_installed_beside_the_sdk(monkeypatch):
    sdk = types.ModuleType("ipu")
    monkeypatch.setattr(sys.modules["tensorflow.python"], "ipu", sdk, raising=False)
    with pytest.raises(RuntimeError, match="nothing is emulated beside it"):
        install()
