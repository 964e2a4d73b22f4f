"""Options from JSON and from files, which are read and never executed."""

from __future__ import annotations

import pytest

from unified_ipu_torch.emulated import poptorch


def from_file(tmp_path, text):
    path = tmp_path / "options.conf"
    path.write_text(text, encoding="utf-8")
    return poptorch.Options().loadFromFile(str(path))


def test_a_file_holds_one_call_a_line(tmp_path):
    options = from_file(
        tmp_path,
        "deviceIterations(4)\n"
        "  replicationFactor(2)   \n"
        "\n"
        "# a comment\n"
        "Training.gradientAccumulation(8)\n"
        "outputMode(poptorch.OutputMode.EveryN, output_return_period=2) # another\n"
        'setAvailableMemoryProportion({"IPU0": 0.5})\n'
        "setExecutionStrategy(poptorch.ShardedExecution())\n"
        '_Popart.set("autoRecomputation", 3)\n',
    )
    assert (options.device_iterations, options.replication_factor) == (4, 2)
    assert options.Training.gradient_accumulation == 8
    assert (options.output_mode, options.output_return_period) == (1, 2)
    assert options.available_memory_proportion == {0: 0.5}
    assert isinstance(options._execution_strategy, poptorch.ShardedExecution)
    assert options._Popart.options["autoRecomputation"] == 3


@pytest.mark.parametrize(
    "line",
    [
        "set(device_iterations=__import__('os').getpid())",
        "deviceIterations(open('x'))",
        "deviceIterations(1 + len('ab'))",
        "deviceIterations(options.__class__)",
        "deviceIterations(2); deviceIterations",
        "deviceIterations",
    ],
)
def test_nothing_but_setters_names_of_poptorch_and_literals_is_understood(tmp_path, line):
    with pytest.raises(poptorch.ConfigFileError, match=r"line 1 of options\.conf"):
        from_file(tmp_path, line)


def test_a_bracket_left_open_is_told_with_its_line(tmp_path):
    with pytest.raises(poptorch.ConfigFileError) as caught:
        from_file(tmp_path, "deviceIterations(2)\noutputMode(poptorch.OutputMode.All")
    assert str(caught.value) == (
        "SyntaxError at line 2 of options.conf: unexpected EOF while parsing\n"
        "> options.outputMode(poptorch.OutputMode.All"
    )


def test_json_names_setters_and_members(monkeypatch):
    monkeypatch.setenv(
        "POPTORCH_DEFAULT_OPTIONS",
        '{"deviceIterations": 2, "Precision.enableFloatingPointExceptions": true,'
        ' "connectionType": "ConnectionType.OnDemand", "_Popart.set": ["logDir", "x.y"]}',
    )
    options = poptorch.Options()
    assert (options.device_iterations, options.connection_type) == (2, 1)
    assert options._Popart.options["enableFloatingPointChecks"] is True
    assert options._Popart.options["logDir"] == "x.y"


def test_a_cache_folder_from_the_environment_is_kept_and_not_made(monkeypatch, tmp_path):
    monkeypatch.setenv("POPTORCH_CACHE_DIR", str(tmp_path / "cache"))
    options = poptorch.Options()
    assert options._Popart.options["cachePath"] == str(tmp_path / "cache")
    assert options._Popart.options["enableEngineCaching"] is True
    assert not (tmp_path / "cache").exists()
