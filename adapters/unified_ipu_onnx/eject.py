"""Our lowering as a plain PopART script, with the graph beside it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict, List, Sequence, Tuple

from unified_ipu.adapter import (
    EjectRequest,
    NativeCall,
    NativeText,
    assignment_text,
    native_code,
    setting_text,
)
from unified_ipu.errors import CapabilityError
from unified_ipu_onnx.eject_parts import loss_text, optimizer_text, state_text
from unified_ipu_onnx.emulated import popart
from unified_ipu_onnx.errors import NAME
from unified_ipu_onnx.ipu.model import DeviceModel
from unified_ipu_onnx.ipu.optimizers import NativeOptimizer
from unified_ipu_onnx.ipu.twin import HostTwin
from unified_ipu_onnx.reading import LoadedModel, real_inputs

_STATE = """\
# At operator set 11, with static shapes: {rows} rows.
MODEL = Path(__file__).with_name("{file}")

# What is trained, and what the optimizer keeps of it (its names begin with Accl and Step).
{state}
"""

_OPTIMIZER = '''\
def optimizer_of(factor):
    """Return the optimizer with its rate times ``factor``; (value, False) can be sent anew."""
{made}
'''

_SESSION = '''\
def session_of(updates, device):
    """Return a session of so many updates a call, and the name of its loss."""
    builder = popart.Builder(str(MODEL))
    targets = builder.addInputTensor(
        popart.TensorInfo("{kind}", {shape}),
        "native/targets",
    )
    coefficients = builder.addInputTensor(
        popart.TensorInfo("FLOAT", [MICRO_BATCH]),
        "native/coefficients",
    )
    ops = builder.aiOnnxOpset11
{losses}
    weighted = ops.mul([losses, coefficients])
    loss = ops.reducesum([weighted], axes=[0], keepdims=0)
    opts = popart.SessionOptions()
{options}
    session = popart.TrainingSession(
        fnModel=builder.getModelProto(),
        # batch.updates_per_call
        dataFlow=popart.DataFlow(updates, {{loss: {anchor}}}),
        loss=loss,
        optimizer=optimizer_of(1.0),
        deviceInfo=device,
        userOptions=opts,
    )
    session.prepareDevice()
{seed}
    return session, loss
'''

_DEVICE = '''\
class Device:
    """The graph on IPUs; a call of another length gets a session of its own."""

    def __init__(self):
        manager = popart.DeviceManager()
{device}
        self.session, self.loss, self.updates = None, "", 0

    def run(self, factor, inputs, targets, coefficients):
        """Run one call; return the sum of its updates' losses."""
        updates = len(coefficients) // GLOBAL_BATCH
        if updates != self.updates:
            state = self.state() if self.session else {{}}
            self.session, self.loss = session_of(updates, self.device)
            if state:
                self.session.writeWeights(popart.PyWeightsIO(state))
            self.session.weightsFromHost()
            self.updates = updates
        # {rates}: a value that is not sent stays as it is.
        self.session.updateOptimizerFromHost(optimizer_of(factor))
        feeds = {{
            "{input}": np.ascontiguousarray(inputs, np.{dtype}),
            "native/targets": targets.astype(np.{targets}),
            "native/coefficients": coefficients,
        }}
        anchors = self.session.initAnchorArrays()
        self.session.run(popart.PyStepIO(feeds, anchors))
        return float(anchors[self.loss].sum())

    def state(self):
        """Return the weights and the optimizer's state."""
        arrays = {{name: np.empty(shape, np.float32) for name, shape in STATE.items()}}
        self.session.weightsToHost()
        self.session.readWeights(popart.PyWeightsIO(arrays))
        return arrays

    def save(self, path):
        """Write the graph with its weights."""
        self.session.modelToHost(path)
'''

_UNWRITTEN = {
    "popart.GraphTransformer.convertFloatsToHalfs": 'precision.compute is written for "float32"',
    "node.attribute.__available_memory": "ipu.available_memory_proportion is set node by node",
    "DeviceManager.createOfflineIPUDevice": "ipu.offline_compile trains nothing",
}


def eject(request: EjectRequest, module: Any, source: LoadedModel) -> NativeText:
    """Write what trains the graph in one process of PopART.

    Args:
        request: What was compiled, and its lowering.
        module: What is trained, made from the model.
        source: The model.

    Returns:
        The functions and classes of the script, and the graph.

    Raises:
        CapabilityError: If PopART cannot do it, or the loss, the optimizer or a setting is not
            written.
    """
    calls = [call for call in request.lowering.calls if call.program == "training"]
    for call in calls:
        if call.name in _UNWRITTEN:
            raise CapabilityError(NAME, f"{_UNWRITTEN[call.name]}, which is not written")
    job = replace(request.job, model=module)
    twin = HostTwin(job, source, is_first=False, on_close=_ignore)
    if twin.optimizer is None:
        raise CapabilityError(NAME, "compile got no optimizer, so there is nothing to train")
    native = NativeOptimizer(twin.optimizer, twin.trained, calls, popart)
    model, rows = DeviceModel(source), request.plan.batch.micro_batch_size
    name, shape = _only_input(model, source, rows)
    graph = model.with_shapes({name: shape}, twin.values(), twin.trained)
    output = _only_output(model)
    out = model.shape_of(output, {name: shape})
    losses, units, kind = loss_text(request.job.loss, output, out)
    by_name = {call.name: call for call in calls}
    acquire = next(call for call in calls if call.name.startswith("DeviceManager."))
    owned = replace(acquire, name=f"self.device = manager.{acquire.name.partition('.')[2]}")
    parts = [
        _STATE.format(file=f"{request.stem}.onnx", rows=rows, state=_state(twin, native)),
        units,
        _OPTIMIZER.format(made=optimizer_text(twin.optimizer, calls)),
        _SESSION.format(
            kind=kind,
            shape="[MICRO_BATCH]" if kind == "INT32" else _shape_text(out),
            losses="\n".join(f"    {line}" for line in losses.splitlines()),
            options=_options(calls),
            anchor=native_code(by_name["popart.DataFlow.anchorReturnType"].value),
            seed=setting_text(by_name["session.setRandomSeed"], indent=4),
        ),
        _DEVICE.format(
            device=setting_text(owned, indent=8),
            rates=by_name["session.updateOptimizerFromHost"].field,
            input=name,
            dtype=model.dtypes[name].name,
            targets="int32" if kind == "INT32" else "float32",
        ),
    ]
    return NativeText(
        sdk="PopART",
        imports=("import popart", "from pathlib import Path"),
        definitions="\n\n".join(parts),
        suffix=".trained.onnx",
        notes=model.notes,
        files={".onnx": graph.SerializeToString()},
    )


def _shape_text(shape: Sequence[int]) -> str:
    return f"[{', '.join(['MICRO_BATCH', *map(str, shape[1:])])}]"


def _options(calls: Sequence[NativeCall]) -> str:
    found = [call for call in calls if call.name.startswith("opts.")]
    return "\n".join(assignment_text(call, indent=4) for call in found)


def _state(twin: HostTwin, native: NativeOptimizer) -> str:
    shapes: Dict[str, List[int]] = {}
    for name, parameter in twin.trained.items():
        shapes[name] = list(parameter.shape)
        for key, slot in native.slots(name).items():
            shapes[slot] = [] if key == "step" else list(parameter.shape)
    return state_text(shapes)


def _only_input(model: DeviceModel, source: LoadedModel, rows: int) -> Tuple[str, List[int]]:
    names = real_inputs(source.proto.graph)
    values = {value.name: value for value in source.proto.graph.input if value.name in names}
    if len(values) != 1:
        raise CapabilityError(NAME, f"the graph has the inputs {[*values]}; one is written")
    ((name, value),) = values.items()
    sizes = [dim.dim_value for dim in value.type.tensor_type.shape.dim][1:]
    if not all(sizes) or name not in model.dtypes:
        raise CapabilityError(
            NAME, f"input {name!r} has no static shape behind its rows; export it with sizes"
        )
    return name, [rows, *sizes]


def _only_output(model: DeviceModel) -> str:
    if len(model.outputs) != 1:
        raise CapabilityError(NAME, f"the graph has {len(model.outputs)} outputs; one is written")
    return str(model.outputs[0])


def _ignore(module: Any) -> None:
    """Nothing is kept of the module."""
