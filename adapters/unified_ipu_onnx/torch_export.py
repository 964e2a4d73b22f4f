"""A torch model as an ONNX file that trains on from where the model stands.

torch's exporter decides what is computed; what it does to names, layouts and layers is undone or
switched off. Folded constants would transpose weights and give them new names, the form of
inference would leave dropout out and merge batch normalisation into convolutions, and equal
weights would be merged into one. So a copy of the model is exported as in training, without
folding; then layers are put into the form of inference, weights get the model's own values, and the
result is run by onnxruntime and compared with the model.
"""

from __future__ import annotations

import copy
import inspect
import tempfile
import warnings
from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence, Tuple

import onnx
import torch
from onnx import ModelProto

from unified_ipu.adapter import leaves, map_tree
from unified_ipu.errors import CapabilityError, ContractError
from unified_ipu_onnx.deployed import to_inference
from unified_ipu_onnx.errors import NAME
from unified_ipu_onnx.inference import RELATIVE, largest_difference, run_deployed
from unified_ipu_onnx.values import ONNX_TYPES
from unified_ipu_onnx.writing import save_model
from unified_ipu_torch.evaluation import evaluation_mode
from unified_ipu_torch.onnx_export import TensorLike
from unified_ipu_torch.tensors import plain_name

_TRACED_ROWS = 2
_CHECKED_ROWS = 3  # other ones than were traced: a size that was baked in shows
_OPSET = 17


def export_torch(
    model: torch.nn.Module, args: Tuple[Any, ...], kwargs: Mapping[str, Any], path: Path
) -> None:
    """Export a model, check the result, write it.

    Args:
        model: In its present state, which does not change.
        args: Of its forward, with a ``TensorLike`` for each tensor.
        kwargs: Likewise.
        path: An existing file is replaced.

    Raises:
        CapabilityError: If torch cannot export the model.
        ContractError: If what was exported computes something else than the model.
        ConfigError: If it cannot be written there.
    """
    model = getattr(model, "_orig_mod", model)
    kwargs = _all_by_name(model, args, kwargs)
    proto = _exported(model, kwargs)
    _use_inference_form(proto)
    values = _values(model, proto)
    _check(model, proto, values, kwargs)
    save_model(proto, path, values=values)


def _all_by_name(
    model: torch.nn.Module, args: Tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Dict[str, Any]:
    """All arguments of forward by name, so that inputs have names a reader knows.

    Raises:
        CapabilityError: If some have no name.
    """
    try:
        bound = inspect.signature(model.forward).bind(*args, **kwargs)
    except (TypeError, ValueError) as error:
        raise CapabilityError(NAME, f"the arguments of forward cannot be named: {error}") from error
    parameters = inspect.signature(model.forward).parameters
    if any(parameters[name].kind is inspect.Parameter.VAR_POSITIONAL for name in bound.arguments):
        raise CapabilityError(
            NAME, "forward takes *args, which have no names; give its arguments names"
        )
    found: Dict[str, Any] = {}
    for name, value in bound.arguments.items():
        if parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            found.update(value)
        else:
            found[name] = value
    return found


def _samples(tree: Any, rows: int) -> Any:
    """Tensors of that many rows; numbers are normal, indices 0."""
    generator = torch.Generator().manual_seed(rows)

    def sample(leaf: Any) -> Any:
        if not isinstance(leaf, TensorLike):
            return leaf
        shape = (rows, *leaf.shape[1:]) if leaf.shape else ()
        if leaf.dtype.is_floating_point:
            return torch.randn(shape, generator=generator).to(leaf.dtype)
        return torch.zeros(shape, dtype=leaf.dtype)

    return map_tree(tree, sample)


def _exported(model: torch.nn.Module, kwargs: Mapping[str, Any]) -> ModelProto:
    twin = copy.deepcopy(model).cpu()
    inputs = _samples(dict(kwargs), _TRACED_ROWS)
    names = [_joined(where) for where, leaf in leaves(inputs) if isinstance(leaf, torch.Tensor)]
    with torch.no_grad(), evaluation_mode(twin):
        outputs = _output_names(twin(**inputs))
    twin.train()
    options: Dict[str, Any] = {
        "input_names": names,
        "output_names": outputs,
        "dynamic_axes": {name: {0: "rows"} for name in (*names, *outputs)},
        "opset_version": _OPSET,
        "do_constant_folding": False,
        "training": torch.onnx.TrainingMode.TRAINING,
    }
    if "dynamo" in inspect.signature(torch.onnx.export).parameters:
        options["dynamo"] = False  # the newer one needs a package that is not everywhere
    state = torch.get_rng_state()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on the age of the exporter, and on what it traces
        file = Path(folder) / "model.onnx"
        try:
            torch.onnx.export(twin, (inputs,), str(file), **options)
        except Exception as error:  # of many classes, which move between versions
            first = str(error).strip().splitlines()
            raise CapabilityError(
                NAME, f"torch.onnx.export cannot export this model: {first[0] if first else error}"
            ) from error
        finally:
            torch.set_rng_state(state)
        return onnx.load(str(file))


def _joined(where: str) -> str:
    return where.replace("[", ".").replace("]", "").replace("'", "").strip(".")


def _output_names(outputs: Any) -> List[str]:
    if isinstance(outputs, torch.Tensor):
        return ["output"]
    if isinstance(outputs, dict) and all(isinstance(v, torch.Tensor) for v in outputs.values()):
        return [str(name) for name in outputs]
    return [f"output.{index}" for index, _ in enumerate(leaves(outputs))]


def _use_inference_form(proto: ModelProto) -> None:
    """As others read the file: nothing in it trains."""
    to_inference(proto)
    graph = proto.graph
    read = {name for node in graph.node for name in node.input}
    read |= {value.name for value in graph.output}
    for node in list(graph.node):
        if node.op_type == "Constant" and not read.intersection(node.output):
            graph.node.remove(node)
    written = {name for node in graph.node for name in node.output}
    for value in list(graph.value_info):
        if value.name not in written:
            graph.value_info.remove(value)


def _values(model: torch.nn.Module, proto: ModelProto) -> Dict[str, torch.Tensor]:
    """The model's own values of the initializers: tracing has moved running statistics."""
    state = {plain_name(name): tensor for name, tensor in model.state_dict().items()}
    found = {}
    for tensor in proto.graph.initializer:
        value = state.get(tensor.name)
        if value is not None and value.dtype in ONNX_TYPES:
            found[tensor.name] = value.detach()
    return found


def _check(
    model: torch.nn.Module,
    proto: ModelProto,
    values: Mapping[str, torch.Tensor],
    kwargs: Mapping[str, Any],
) -> None:
    """Compare the exported model with the one that it was made of.

    Raises:
        ContractError: If they differ.
    """
    inputs = _samples(dict(kwargs), _CHECKED_ROWS)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    with evaluation_mode(model), torch.random.fork_rng(devices=[]):
        expected = model(**map_tree(inputs, lambda leaf: _moved(leaf, device)))
    wanted = [leaf.detach().cpu() for _, leaf in leaves(expected) if isinstance(leaf, torch.Tensor)]
    feeds = [leaf for _, leaf in leaves(inputs) if isinstance(leaf, torch.Tensor)]
    names = [_joined(where) for where, leaf in leaves(inputs) if isinstance(leaf, torch.Tensor)]
    found = run_deployed(proto, values, dict(zip(names, feeds)))
    _compare([value.name for value in proto.graph.output], wanted, found)


def _moved(leaf: Any, device: torch.device) -> Any:
    return leaf.to(device) if isinstance(leaf, torch.Tensor) else leaf


def _compare(
    names: Sequence[str], wanted: Sequence[torch.Tensor], found: Sequence[torch.Tensor]
) -> None:
    for name, expected, value in zip(names, wanted, found):
        difference = largest_difference(expected, value)
        if difference > RELATIVE:
            raise ContractError(
                NAME,
                f"the exported model differs from the model in {name!r}: by {difference:.2g} of "
                f"its largest value on {_CHECKED_ROWS} rows, expected at most {RELATIVE:g}. Look "
                "for Python control flow or sizes that the exporter took for constants; nothing "
                "was written",
            )
