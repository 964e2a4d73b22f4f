"""Operators of older operator sets, against onnxruntime: the node cases, written as it was then.

What became an input later (axes, bounds, sizes) is put back into an attribute; what the operator of
that time could not say is left out.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import lru_cache
from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

import numpy as np
import onnx_coverage
import pytest
from onnx import ModelProto, NodeProto, checker, defs, helper
from onnx.defs import OpSchema
from onnx_coverage import Case, difference, tensor

from tests.adapters.unified_ipu_onnx.finite_differences import engine_of
from unified_ipu_onnx.module import GraphModule

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

OLDEST = 7  # that onnxruntime reads

# Where onnxruntime gives something else than the suite of the standard does.
OTHERWISE_THERE = {
    "test_maxunpool_export_with_output_shape",
    "test_resize_downsample_scales_cubic_align_corners",
    "test_resize_downsample_scales_linear_align_corners",
}
SLOW = {f"test_{kind}_3d_default" for kind in ("averagepool", "lppool", "maxpool")}

# Inputs that were attributes.
MOVED: Dict[str, List[str]] = {
    "Clip": ["min", "max"],
    "Pad": ["pads"],
    "Reshape": ["shape"],
    "Slice": ["starts", "ends", "axes"],
    "Split": ["split"],
    "Squeeze": ["axes"],
    "TopK": ["k"],
    "Unsqueeze": ["axes"],
    **{
        f"Reduce{name}": ["axes"]
        for name in (
            "L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare",
        )
    },
}  # fmt: skip


def older(case: Case) -> Iterator[Tuple[int, ModelProto, Dict[str, Any]]]:
    """The case in each older version of its operator that can say it: opset, model, inputs."""
    node = case.model.graph.node[0]
    now = next(entry.version for entry in case.model.opset_import if not entry.domain)
    newest = defs.get_schema(node.op_type, now, "")
    versions = sorted(history()[node.op_type])
    for version, following in zip(versions, versions[1:]):
        if following > newest.since_version or following <= OLDEST:
            continue
        opset = max(version, OLDEST)
        then = _written_then(case, opset, newest, defs.get_schema(node.op_type, opset, ""))
        if then is not None:
            yield (opset, *then)


@lru_cache(maxsize=1)
def history() -> Dict[str, Set[int]]:
    """Operator sets in which each operator changed."""
    found: Dict[str, Set[int]] = defaultdict(set)
    for schema in defs.get_all_schemas_with_history():
        if not schema.domain:
            found[schema.name].add(schema.since_version)
    return found


def _written_then(
    case: Case, opset: int, newest: OpSchema, schema: OpSchema
) -> Optional[Tuple[ModelProto, Dict[str, Any]]]:
    model = ModelProto()
    model.CopyFrom(case.model)
    model.ir_version = 8
    for entry in model.opset_import:
        entry.version = opset if not entry.domain else entry.version
    data = dict(zip((value.name for value in model.graph.input), case.data[0][0]))
    node = model.graph.node[0]
    _move_inputs(node, data, schema)
    for attribute in [a for a in node.attribute if a.name not in schema.attributes]:
        usual = newest.attributes[attribute.name].default_value
        said = helper.get_attribute_value(attribute)
        # What the operator did by itself need not be said.
        if usual.name and helper.get_attribute_value(usual) == said:
            node.attribute.remove(attribute)
    kept = [value for value in model.graph.input if value.name in set(node.input)]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    try:
        checker.check_model(model)
    except checker.ValidationError:
        return None  # it could not be said then
    return model, {value.name: data[value.name] for value in kept}


def _move_inputs(node: NodeProto, data: Dict[str, Any], schema: OpSchema) -> None:
    names = list(node.input)
    for position, name in enumerate(MOVED.get(node.op_type, ()), start=1):
        if position >= len(names) or not names[position] or name not in schema.attributes:
            continue
        array = np.asarray(data[names[position]])
        kind = schema.attributes[name].type
        value: Any = array.reshape(-1).tolist()
        if kind in {OpSchema.AttrType.FLOAT, OpSchema.AttrType.INT}:
            value = value[0]
        if value != []:
            node.attribute.append(helper.make_attribute(name, value))
        names[position] = ""
    while names and not names[-1]:
        names.pop()
    node.input[:] = names


def cases() -> Iterator[Case]:
    """Node cases of one operator of the standard's main domain, with ordinary numbers."""
    for case in onnx_coverage.nodes():
        nodes = case.model.graph.node
        drawn = case.is_random or case.is_training
        if len(nodes) != 1 or nodes[0].domain or not case.has_floats or drawn:
            continue
        inputs = case.data[0][0]
        plain = all(isinstance(a, np.ndarray) and a.dtype.name != "bfloat16" for a in inputs)
        # Scan of operator set 8 had a batch axis, so a case of a newer one means something else.
        skipped = case.name in OTHERWISE_THERE | SLOW or nodes[0].op_type == "Scan"
        if plain and not skipped and "expanded" not in case.name:
            yield case


def test_operators_mean_in_older_operator_sets_what_they_meant_then() -> None:
    compared: Counter[str] = Counter()
    wrong = []
    for case in cases():
        for opset, model, feeds in older(case):
            try:
                engine = engine_of(model, feeds)
                expected = engine(feeds)
            except Exception:  # noqa: BLE001, S112  # neither engine reads it, so nothing is known
                continue
            module = GraphModule.from_model(model).eval()
            result = module(**{name: tensor(array) for name, array in feeds.items()})
            ours = list(result.values()) if isinstance(result, dict) else [result]
            for own, other in zip(ours, expected):
                what = difference(own, tensor(other), case)
                if what:
                    wrong.append(f"{case.name} in operator set {opset}: {what}")
            compared[model.graph.node[0].op_type] += 1
    assert wrong == []
    assert sum(compared.values()) > 1200
    assert len(compared) > 100


def test_the_writer_of_old_models_moves_axes_into_an_attribute() -> None:
    case = next(c for c in cases() if c.name == "test_unsqueeze_two_axes")
    written = {opset: model for opset, model, _ in older(case)}
    assert min(written) == OLDEST
    (node,) = written[OLDEST].graph.node
    assert list(node.input) == ["x"]
    assert {a.name: helper.get_attribute_value(a) for a in node.attribute} == {"axes": [1, 4]}
