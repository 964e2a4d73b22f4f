"""``poptorch.Options``: every setting of a program, checked as PopTorch does, frozen once used.

Longer than most modules since the class has to offer all of PopTorch's setters.

Source: PopTorch 3.4, ``python/options.py``.
"""

from __future__ import annotations

import copy
from typing import Any, Dict, List, Optional

import torch

from unified_ipu.world import current_environment
from unified_ipu_torch.emulated.poptorch import enums
from unified_ipu_torch.emulated.poptorch.errors import require
from unified_ipu_torch.emulated.poptorch.locations import _TensorLocationOptions
from unified_ipu_torch.emulated.poptorch.log import logger, note_once
from unified_ipu_torch.emulated.poptorch.option_groups import (
    HARDWARE_ONLY,
    _DistributedOptions,
    _JitOptions,
    _PopartOptions,
    _PrecisionOptions,
    _TrainingOptions,
)
from unified_ipu_torch.emulated.poptorch.option_text import (
    ConfigFileError as ConfigFileError,
    set_from_file,
    set_from_json,
)
from unified_ipu_torch.emulated.poptorch.strategies import PipelinedExecution, _IExecutionStrategy
from unified_ipu_torch.emulated.poptorch.values import OptionsDict

_NO_LIMIT = (1 << 64) - 1
_GROUPS = ("Jit", "Precision", "Training", "Distributed", "TensorLocations", "_Popart")


class Options(OptionsDict):
    """How a model is run: set before it is wrapped, read-only afterwards."""

    def __init__(self) -> None:
        self._jit = _JitOptions()
        self._popart = _PopartOptions()
        self._graphProcessing = _PrecisionOptions(self._popart)
        self._training = _TrainingOptions(self._popart)
        self._distributed = _DistributedOptions()
        self._tensor_locations = _TensorLocationOptions()
        self._execution_strategy: _IExecutionStrategy = PipelinedExecution()
        self._source_location_excludes: List[str] = []
        self._relax_optimizer_checks = False
        self._show_compilation_progress_bar = True
        self._module_namescope_enabled = True
        super().__init__(
            replication_factor=1,
            input_group_size=1,
            input_cgt=enums.CommGroupType.Consecutive,
            broadcast_buffers=True,
            device_iterations=1,
            log_dir=".",
            max_repeat_logs=4,
            auto_round_num_ipus=False,
            anchored_tensors={},
            output_mode=enums.OutputMode.Default.value,
            output_return_period=1,
            connection_type=enums.ConnectionType.Always.value,
            sync_pattern=enums.SyncPattern.Full.value,
            available_memory_proportion={},
        )
        environment = current_environment()
        if environment.get("POPTORCH_CACHE_DIR"):
            self.enableExecutableCaching(environment["POPTORCH_CACHE_DIR"])
        self.from_json(environment.get("POPTORCH_DEFAULT_OPTIONS", "{}"))

    @property
    def Jit(self) -> _JitOptions:
        """What is left of the options of tracing."""
        return self._jit

    @property
    def Precision(self) -> _PrecisionOptions:
        """Number formats of the hardware."""
        return self._graphProcessing

    @property
    def Training(self) -> _TrainingOptions:
        """Accumulation and reduction of gradients."""
        return self._training

    @property
    def Distributed(self) -> _DistributedOptions:
        """Which of several processes this one is."""
        return self._distributed

    @property
    def TensorLocations(self) -> _TensorLocationOptions:
        """Where tensors would live."""
        return self._tensor_locations

    @property
    def _Popart(self) -> _PopartOptions:
        return self._popart

    def from_json(self, string: str) -> Options:
        """Call a setter for each entry of a JSON table."""
        set_from_json(self, string)
        return self

    def loadFromFile(self, filepath: str) -> Options:
        """Call the setters of a file; it is read, not executed."""
        set_from_file(self, filepath)
        return self

    def deviceIterations(self, device_iterations: int) -> Options:
        """Set the iterations of one call: updates in training, micro-batches in inference."""
        self.set(device_iterations=device_iterations)
        return self

    def replicationFactor(self, replication_factor: int) -> Options:
        """Set the replicas of this process."""
        self.set(replication_factor=replication_factor)
        return self

    def inputReplicaGrouping(
        self, input_group_size: int, input_group_type: enums.CommGroupType
    ) -> Options:
        """Give groups of replicas the same input.

        Args:
            input_group_size: Replicas of a group; divides the replication factor, which has to be
                set before.
            input_group_type: Which replicas make a group.

        Raises:
            ValueError: If the replicas cannot be grouped so.
        """
        if input_group_type == enums.CommGroupType.NoGrouping:
            input_group_size, input_group_type = 1, enums.CommGroupType.Consecutive
        if input_group_type == enums.CommGroupType.All:
            raise ValueError("input_group_type cannot be All")
        replicas = self.replication_factor
        if replicas < input_group_size or replicas % input_group_size:
            raise ValueError(
                f"input_group_size must be a factor of replication_factor, got {input_group_size} "
                f"and {replicas}"
            )
        self.set(input_group_size=input_group_size, input_cgt=input_group_type)
        return self

    def broadcastBuffers(self, broadcast_buffers: bool = True) -> Options:
        """Say that replicas' buffers are meant to be the same."""
        self.set(broadcast_buffers=broadcast_buffers)
        return self

    def autoRoundNumIPUs(self, auto_round_num_ipus: bool = True) -> Options:
        """Round the number of IPUs up to a power of two, instead of refusing it."""
        self.set(auto_round_num_ipus=auto_round_num_ipus)
        return self

    def setExecutionStrategy(self, strategy: Any) -> Options:
        """Choose how a model that is split over IPUs runs."""
        self.checkIsFrozen()
        require(
            isinstance(strategy, _IExecutionStrategy), f"not an execution strategy: {strategy!r}"
        )
        self._execution_strategy = strategy
        return self

    def setAvailableMemoryProportion(
        self, available_memory_proportion: Dict[str, float]
    ) -> Options:
        """Set the share of memory for temporary values.

        Args:
            available_memory_proportion: 0 to 1, by "IPU0", "IPU1", ...

        Raises:
            AssertionError: If a key is not "IPU" and a number.
        """
        found = {}
        for key, share in available_memory_proportion.items():
            require(
                key.startswith("IPU") and key[3:].isdigit(),
                'Available memory proportions are expected to be in a dictionary of {"IPU0": 0.5}. '
                f"Invalid key: {key}",
            )
            found[int(key[3:])] = share
        self.createOrSet(available_memory_proportion=found)
        note_once("setAvailableMemoryProportion", HARDWARE_ONLY)
        return self

    def outputMode(
        self, output_mode: enums.OutputMode, output_return_period: Optional[int] = None
    ) -> Options:
        """Choose which micro-batches' outputs come back.

        Args:
            output_mode: A ``poptorch.OutputMode``.
            output_return_period: With EveryN: one in how many iterations.

        Raises:
            AssertionError: If it is no such mode, or EveryN lacks its period.
        """
        require(
            isinstance(output_mode, enums.OutputMode),
            f"expected a poptorch.OutputMode, got {output_mode!r}",
        )
        if output_mode == enums.OutputMode.EveryN:
            require(
                output_return_period and output_return_period > 0,
                "EveryN anchor must have output_return_period set to valid positive integer",
            )
        elif output_return_period:
            logger.info("output_return_period is ignored with output mode %s", output_mode)
        self.set(output_mode=output_mode.value, output_return_period=output_return_period or 1)
        return self

    def defaultOutputMode(self) -> bool:
        """Whether the output mode is still open."""
        return bool(self.output_mode == enums.OutputMode.Default)

    def anchorTensor(
        self,
        short_name: str,
        long_name: str,
        output_mode: Optional[enums.OutputMode] = None,
        output_return_period: int = 1,
    ) -> None:
        """Keep a tensor of the graph, to be read after a call.

        Args:
            short_name: To read it by.
            long_name: Its name in the graph.
            output_mode: None means that of the model.
            output_return_period: With EveryN: one in how many iterations.
        """
        self.checkIsFrozen()
        period = output_return_period if output_mode == enums.OutputMode.EveryN else 1
        self.anchored_tensors[short_name] = [long_name, output_mode is None, output_mode, period]

    def connectionType(self, connection_type: enums.ConnectionType) -> Options:
        """Choose when to attach."""
        require(
            isinstance(connection_type, enums.ConnectionType),
            f"expected a poptorch.ConnectionType, got {connection_type!r}",
        )
        self.set(connection_type=connection_type.value)
        return self

    def syncPattern(self, sync_pattern: enums.SyncPattern) -> Options:
        """Choose which IPUs wait for each other."""
        require(
            isinstance(sync_pattern, enums.SyncPattern),
            f"expected a poptorch.SyncPattern, got {sync_pattern!r}",
        )
        self.set(sync_pattern=sync_pattern.value)
        note_once("syncPattern", HARDWARE_ONLY)
        return self

    def useIpuModel(self, use_model: bool) -> Options:
        """Ask for the SDK's simulator."""
        return self._note("useIpuModel", use_model=use_model)

    def useIpuId(self, ipu_id: int) -> Options:
        """Ask for one device."""
        require(isinstance(ipu_id, int), f"an id is an int, got {ipu_id!r}")
        return self._note("useIpuId", ipu_id=ipu_id)

    def useOfflineIpuTarget(self, ipu_version: int = 2) -> Options:
        """Compile without a device; such a program cannot run."""
        self.connectionType(enums.ConnectionType.Never)
        self.createOrSet(ipu_version=ipu_version)
        return self

    def enableExecutableCaching(self, path: Optional[str]) -> Options:
        """Keep compiled programs in a folder; nothing is written here."""
        if path is None:
            self._popart.set("enableEngineCaching", value=False)
        else:
            self._popart.set("cachePath", path)
            self._popart.set("enableEngineCaching", value=True)
        return self

    def randomSeed(self, random_seed: int) -> Options:
        """Seed the device, and ``torch`` on the host."""
        require(isinstance(random_seed, int), f"a seed is an int, got {random_seed!r}")
        self.createOrSet(random_seed=random_seed)
        torch.manual_seed(random_seed)
        return self

    def enableSyntheticData(self, enabled: bool) -> Options:
        """Let the device make up its inputs: normal noise, whatever the host sends."""
        self._popart.set("syntheticDataMode", 2 if enabled else 0)
        return self

    def enableStableNorm(self, enabled: bool) -> Options:
        """Compute norms in a slower, more stable way on the hardware."""
        self._popart.set("enableStableNorm", enabled)
        return self

    def logCycleCount(self, log_cycle_count: bool) -> Options:
        """Count the hardware's cycles."""
        self._popart.set("instrumentWithHardwareCycleCounter", log_cycle_count)
        return self

    def enableProfiling(self, profile_dir: Optional[str] = None) -> Options:
        """Write the hardware's profiles; nothing is written here."""
        engine = dict(self._popart.options.get("engineOptions", {}))
        engine["debug.allowOutOfMemory"] = "true"
        engine["autoReport.directory"] = profile_dir or "."
        engine["autoReport.all"] = "true"
        self._popart.setEngineOptions(engine)
        return self

    def updatableNamedBuffers(self, buffers: List[str]) -> Options:
        """Name the buffers that may be sent again."""
        self._popart.set("updatableNamedBuffers", buffers)
        return self

    def logDir(self, log_dir: str) -> Options:
        """Set where logs go."""
        self.set(log_dir=log_dir)
        note_once("logDir", HARDWARE_ONLY)
        return self

    def maxRepeatLogs(self, max_lines: Optional[int]) -> Options:
        """Set how often a line may be logged; None: no limit."""
        self.set(max_repeat_logs=_NO_LIMIT if max_lines is None else max_lines)
        note_once("maxRepeatLogs", HARDWARE_ONLY)
        return self

    def modelName(self, name: str) -> Options:
        """Name the folder of profiles."""
        return self._note("modelName", model_name=name)

    def relaxOptimizerAttributesChecks(self, relax: bool = True) -> Options:
        """Do not warn of an optimizer's unknown attributes."""
        self.checkIsFrozen()
        self._relax_optimizer_checks = relax
        return self

    def showCompilationProgressBar(self, show: bool = True) -> Options:
        """Show how far compilation is; here there is none to show."""
        self.checkIsFrozen()
        self._show_compilation_progress_bar = show
        note_once("showCompilationProgressBar", HARDWARE_ONLY)
        return self

    def sourceLocationExcludes(self, excludes: List[str]) -> Options:
        """Leave files out of debug information."""
        self.checkIsFrozen()
        self._source_location_excludes = list(excludes)
        note_once("sourceLocationExcludes", HARDWARE_ONLY)
        return self

    def appendToLocationExcludes(self, *excludes: str) -> Options:
        """Leave more files out of debug information."""
        self.checkIsFrozen()
        self._source_location_excludes.extend(excludes)
        note_once("appendToLocationExcludes", HARDWARE_ONLY)
        return self

    def disableModuleNamescope(self) -> Options:
        """Leave module names out of tensor names."""
        self.checkIsFrozen()
        self._module_namescope_enabled = False
        note_once("disableModuleNamescope", HARDWARE_ONLY)
        return self

    def clone(self) -> Options:
        """A deep copy that may be changed."""
        return copy.deepcopy(self)

    def toDict(self) -> Dict[str, Any]:
        """Everything in one table, as the backend gets it.

        Raises:
            AssertionError: If the output mode is still open.
        """
        require(not self.defaultOutputMode(), "An output mode must be picked before serialisation")
        found = dict(self._execution_strategy.backendOptions())
        found.update(self._popart.options)
        for group in (self, self._training, self._distributed, self._tensor_locations):
            OptionsDict.update(group, found)
        return found

    def _note(self, name: str, **values: Any) -> Options:
        self.createOrSet(**values)
        note_once(name, HARDWARE_ONLY)
        return self

    def __repr__(self) -> str:
        shown = [f"{name}={value!r}" for name, value in self._values.items()]
        shown += [f"{name}={getattr(self, name)!r}" for name in _GROUPS]
        return f"{type(self).__name__}({', '.join(shown)})"
