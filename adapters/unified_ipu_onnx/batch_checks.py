"""Batch sizes that were baked into a graph are found before training, not in the middle of it.

Exporters write the size of their example batch into the graph where they can: as the shape of an
input, or into a ``Reshape`` to ``[1, ...]``. Such a graph is run on tensors that have shapes and no
values, with the rows of the plan and with other numbers of rows.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

import torch
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

from unified_ipu.adapter import Plan
from unified_ipu.errors import CapabilityError, ConfigError
from unified_ipu_onnx.module import GraphModule
from unified_ipu_onnx.tensors import torch_dtype

_UNKNOWN = 32  # size of an axis of which the graph says nothing
_SHAPED = frozenset({"ConstantOfShape", "Expand", "Reshape"})
_JOINING = frozenset({"Concat", "GRU", "LSTM", "RNN"})
_ADVICE = "export the model with a dynamic batch axis"


class _Outcome(NamedTuple):
    fits: bool
    node: str


def check_batch_size(module: GraphModule, proto: ModelProto, plan: Plan) -> None:
    """Make sure that every micro-batch of the plan fits the graph.

    Args:
        module: Made from ``proto``.
        proto: The model.
        plan: Its micro-batches, and whether the last ones may be shorter.

    Raises:
        ConfigError: Naming the input or node, the size it has, and the plan's.
    """
    micro = plan.batch.micro_batch_size
    declared = _declared_rows(proto, module.input_names)
    for name, rows in declared.items():
        if rows != micro:
            raise ConfigError(_refusal(f"input {name!r}", rows, micro))
    if declared:
        _check_tails(f"input {next(iter(declared))!r}", micro, plan)
        return
    sizes = _sizes_in_nodes(proto)
    if sizes:
        _check_nodes(module, proto, sizes, plan)


def _check_nodes(module: GraphModule, proto: ModelProto, sizes: Set[int], plan: Plan) -> None:
    micro = plan.batch.micro_batch_size
    found = _run(module, proto, micro)
    if found is None:
        return
    if found.fits:
        single = _run(module, proto, 1)
        if single is not None and not single.fits:
            _check_tails(single.node, micro, plan)
        return
    for rows in sorted(sizes - {micro}):
        other = _run(module, proto, rows)
        if other is not None and other.fits:
            raise ConfigError(_refusal(found.node, rows, micro))


def _refusal(what: str, rows: int, micro: int) -> str:
    return (
        f"{what} fits micro-batches of {rows} row{'' if rows == 1 else 's'} only, but "
        f"batch.micro_batch_size is {micro}; {_ADVICE}, or set batch.micro_batch_size = {rows}"
    )


def _check_tails(what: str, micro: int, plan: Plan) -> None:
    total = plan.batch.global_batch_size
    whole = total is None or total % micro == 0
    if micro == 1 or (whole and plan.batch.remainder != "exact"):
        return
    change = f'batch.remainder = "drop" and batch.global_batch_size to a multiple of {micro}'
    raise ConfigError(
        f"{what} fits micro-batches of {micro} rows only, but the last one of an epoch may have "
        f"fewer; {_ADVICE}, or set batch.micro_batch_size = 1, or {change}"
    )


def _declared_rows(proto: ModelProto, inputs: Sequence[str]) -> Dict[str, int]:
    found = {}
    for value in proto.graph.input:
        dims = value.type.tensor_type.shape.dim
        if value.name in inputs and dims and dims[0].dim_value > 0:
            found[value.name] = int(dims[0].dim_value)
    return found


def _run(module: GraphModule, proto: ModelProto, rows: int) -> Optional[_Outcome]:
    """Run the graph on shapes alone; None if its inputs are not described well enough."""
    inputs = _described_inputs(proto, module.input_names, rows)
    if inputs is None:
        return None
    from torch._subclasses.fake_tensor import FakeTensorMode

    was_training = module.training
    module.eval()
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
            feeds = [torch.zeros(shape, dtype=dtype) for shape, dtype in inputs]
            outputs = module(*feeds)
    except Exception as error:  # noqa: BLE001  whatever it is, it counts only if other rows fit
        return _Outcome(fits=False, node=_node_of(error))
    finally:
        module.train(was_training)
    return _outcome_of(outputs, module, rows)


def _outcome_of(outputs: Any, module: GraphModule, rows: int) -> _Outcome:
    named = outputs if isinstance(outputs, dict) else {module.output_names[0]: outputs}
    for name, value in named.items():
        # A loss has no rows; anything else has one for each sample.
        if isinstance(value, torch.Tensor) and value.ndim and value.shape[0] != rows:
            return _Outcome(fits=False, node=f"output {name!r}")
    return _Outcome(fits=True, node="")


def _node_of(error: Exception) -> str:
    label, op_type = getattr(error, "label", None), getattr(error, "op_type", "")
    return "the graph" if label is None else f"node {label!r} ({op_type})"


def _described_inputs(
    proto: ModelProto, inputs: Sequence[str], rows: int
) -> Optional[List[Tuple[List[int], torch.dtype]]]:
    described = {value.name: value.type for value in proto.graph.input}
    found = []
    for name in inputs:
        kind = described[name].tensor_type
        if not described[name].HasField("tensor_type") or not kind.HasField("shape"):
            return None
        shape = [int(dim.dim_value) or _UNKNOWN for dim in kind.shape.dim]
        if shape:
            shape[0] = rows
        try:
            found.append((shape, torch_dtype(kind.elem_type)))
        except CapabilityError:
            return None
    return found


def _sizes_in_nodes(proto: ModelProto) -> Set[int]:
    """Numbers of rows that nodes may insist on, and 1; empty if no node can insist on any.

    Running a graph on shapes loads parts of torch that take seconds, so it is not done for nothing.
    """
    constants: Dict[str, TensorProto] = {t.name: t for t in proto.graph.initializer}
    for node in proto.graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
            constants[node.output[0]] = node.attribute[0].t
    found: Set[int] = set()
    for node in proto.graph.node:
        held = [constants.get(name) for name in node.input]
        if node.op_type in _SHAPED:
            found |= _leading(node, held)
        elif node.op_type in _JOINING and any(tensor is not None for tensor in held):
            found.add(1)  # rows of a constant beside those of the batch
    return {1, *found} if found else set()


def _leading(node: NodeProto, held: Sequence[Optional[TensorProto]]) -> Set[int]:
    """First axis of the constant shape that a node makes, if it is a size."""
    shape: List[int] = []
    for attribute in node.attribute:
        if attribute.name == "shape":
            shape = list(attribute.ints)
    if held and held[-1] is not None:
        shape = numpy_helper.to_array(held[-1]).reshape(-1).tolist()
    return {int(shape[0])} if shape and shape[0] > 0 else set()
