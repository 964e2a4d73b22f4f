"""``builder.aiOnnx...`` and ``builder.aiGraphcore``: a method for each operator.

Arguments follow the SDK's generated binding: names of tensors; the number of outputs where it may
vary; attributes that must be given, then the others, by position or name; a debug name.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np
import onnx
from onnx import numpy_helper

from unified_ipu_onnx.emulated.popart.enums import ReductionType
from unified_ipu_onnx.emulated.popart.errors import NotEmulatedError, popart_exception
from unified_ipu_onnx.emulated.popart.support import GRAPHCORE, IMPLEMENTED, check_operator
from unified_ipu_onnx.emulated.popart.tensor_info import data_type_of

Outputs = Union[str, List[str]]
AddNode = Callable[..., List[str]]

# Python's own words have a prefix.
_WORDS = {"And": "logical_and", "If": "logical_if", "Not": "logical_not", "Or": "logical_or"}
_BY_METHOD = {_WORDS.get(name, name.lower()): name for name in IMPLEMENTED}
_WITH_GRAPHS = frozenset({"If", "Loop", "Scan"})
_DEPRECATED = frozenset(
    {("AveragePool", "auto_pad"), ("Conv", "auto_pad"), ("MaxPool", "auto_pad")}
)
_REDUCTIONS = {
    ReductionType.Sum: "Sum",
    ReductionType.Mean: "Mean",
    ReductionType.NoReduction: "None",
}


class AiOnnx:
    """Operators of one operator set of ONNX.

    Args:
        add_node: Appends a node to the graph and returns the names of its outputs.
        version: Of the operator set.
    """

    def __init__(self, add_node: AddNode, version: int) -> None:
        self._add_node = add_node
        self.version = version

    def __str__(self) -> str:
        return f"AiOnnx{self.version}"

    def constant(self, value: Any, debugContext: str = "") -> str:
        """Add a constant.

        Raises:
            popart_exception: If its type is not one of a tensor.
        """
        array = np.ascontiguousarray(value) if np.ndim(value) else np.asarray(value)
        data_type_of(array.dtype)
        held = {"value": numpy_helper.from_array(array)}
        return self._add_node("", "Constant", self.version, [], held, 1, debugContext)[0]

    def __getattr__(self, method: str) -> Callable[..., Outputs]:
        name = _BY_METHOD.get(method)
        if name is None:
            raise AttributeError(f"PopART runs no operator {method!r} of aiOnnxOpset{self.version}")
        if name in _WITH_GRAPHS:
            raise NotEmulatedError(f"{method} of the builder; load a model that holds it")
        try:
            schema = onnx.defs.get_schema(name, self.version, "")
        except onnx.defs.SchemaError:
            raise AttributeError(f"operator set {self.version} has no {name}") from None

        def add(args: Sequence[str] = (), *given: Any, **named: Any) -> Outputs:
            return self._add(schema, args, list(given), named)

        return add

    def _add(
        self, schema: Any, args: Sequence[str], given: List[Any], named: Dict[str, Any]
    ) -> Outputs:
        name = schema.name
        outputs = int(schema.max_output)
        if schema.min_output != schema.max_output:
            outputs = int(given.pop(0) if given else named.pop("num_outputs"))
            if not schema.min_output <= outputs <= schema.max_output:
                raise popart_exception(
                    f"{name} has an invalid number of outputs {outputs}. Must be between "
                    f"{schema.min_output}..{schema.max_output}"
                )
        if not schema.min_input <= len(args) <= schema.max_input:
            raise popart_exception(
                f"{name} has invalid number of inputs {len(args)}. Must be between "
                f"{schema.min_input}..{schema.max_input}"
            )
        debug, attributes = _attributes(name, _ordered(schema), given, named)
        found = self._add_node("", name, self.version, list(args), attributes, outputs, debug)
        return found[0] if schema.max_output == 1 else found


def _ordered(schema: Any) -> Dict[str, bool]:
    """Attributes in the order of the binding, and whether each must be given."""
    known = {name: bool(a.required) for name, a in sorted(schema.attributes.items())}
    names = sorted(known, key=lambda name: not known[name])
    return {name: known[name] for name in names if (schema.name, name) not in _DEPRECATED}


def _attributes(
    operator: str, known: Mapping[str, bool], given: Sequence[Any], named: Mapping[str, Any]
) -> Tuple[str, Dict[str, Any]]:
    """The debug name and the attributes that were given.

    Raises:
        TypeError: If one is missing or unknown.
    """
    order = [*known, "debugContext"]
    if len(given) > len(order):
        raise TypeError(_incompatible(operator, order))
    values: Dict[str, Any] = dict(zip(order, given))
    if len(given) == 1 and isinstance(given[0], str) and operator != "Cast" and order[1:]:
        values = {"debugContext": given[0]}
    for name, value in named.items():
        if name not in order or name in values:
            raise TypeError(f"{_incompatible(operator, order)}; unexpected argument {name!r}")
        values[name] = value
    missing = [name for name, required in known.items() if required and name not in values]
    if missing:
        raise TypeError(f"{_incompatible(operator, order)}; missing argument {missing[0]!r}")
    debug = str(values.pop("debugContext", ""))
    if operator == "Cast":
        kind = values["to"]
        values["to"] = onnx.TensorProto.DataType.Value(kind) if isinstance(kind, str) else kind
    return debug, {name: value for name, value in values.items() if value is not None}


def _incompatible(operator: str, order: Sequence[str]) -> str:
    method = _WORDS.get(operator, operator.lower())
    return (
        f"{method}(): incompatible function arguments. The following argument types are supported: "
        f"args, {', '.join(order)}"
    )


class AiGraphcoreOpset1:
    """PopART's own operators, those that are computed here.

    Args:
        add_node: Appends a node to the graph and returns the names of its outputs.
        version: 1.
    """

    def __init__(self, add_node: AddNode, version: int = 1) -> None:
        self._add_node = add_node
        self.version = version

    def nllloss(
        self,
        args: Sequence[str],
        reduction: ReductionType = ReductionType.Mean,
        ignoreIndex: Optional[int] = None,
        inputIsLogProbability: bool = False,
        debugContext: str = "",
    ) -> str:
        """Add the negative log likelihood of probabilities ``[..., C]`` and labels ``[...]``."""
        values: Dict[str, Any] = {"inputIsLogProbability": int(inputIsLogProbability)}
        if ignoreIndex is not None:
            values["ignoreIndex"] = int(ignoreIndex)
        return self._add("Nll", args, {"reduction": _REDUCTIONS[reduction], **values}, debugContext)

    def l1loss(
        self,
        args: Sequence[str],
        lambda_: float = 1.0,
        reduction: ReductionType = ReductionType.Mean,
        debugContext: str = "",
        **named: float,
    ) -> str:
        """Add the absolute value times ``lambda``, by position or by that name.

        Raises:
            TypeError: For another name.
        """
        factor = named.pop("lambda", lambda_)
        if named:
            raise TypeError(f"l1loss: unexpected argument {next(iter(named))!r}")
        values = {"lambda": float(factor), "reduction": _REDUCTIONS[reduction]}
        return self._add("L1", args, values, debugContext)

    def identityloss(
        self,
        args: Sequence[str],
        reduction: ReductionType = ReductionType.Mean,
        debugContext: str = "",
    ) -> str:
        """Mark a tensor as a loss, reduced."""
        values = {"reduction": _REDUCTIONS[reduction]}
        return self._add("IdentityLoss", args, values, debugContext)

    def scale(self, args: Sequence[str], scale: float, debugContext: str = "") -> str:
        """Add a product with a constant."""
        return self._add("Scale", args, {"scale": float(scale)}, debugContext)

    def detach(self, args: Sequence[str], debugContext: str = "") -> str:
        """Add a copy that no gradient passes."""
        return self._add("Detach", args, {}, debugContext)

    def nop(self, args: Sequence[str], debugContext: str = "") -> str:
        """Add a copy."""
        return self._add("Nop", args, {}, debugContext)

    def __getattr__(self, name: str) -> Any:
        raise NotEmulatedError(f"aiGraphcore.{name}")

    def _add(self, name: str, args: Sequence[str], attributes: Dict[str, Any], debug: str) -> str:
        check_operator(GRAPHCORE, name, self.version)
        return self._add_node(GRAPHCORE, name, self.version, list(args), attributes, 1, debug)[0]
