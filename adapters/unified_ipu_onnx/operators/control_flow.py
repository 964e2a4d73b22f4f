"""Branches and loops, in Python: autograd follows what was run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, List, Optional

import torch

from unified_ipu_onnx.nodes import Node
from unified_ipu_onnx.program import Environment, Subgraph
from unified_ipu_onnx.registry import Function, Operator


def if_(node: Node) -> Function:
    """One branch or the other."""
    then_branch: Subgraph = node.attributes["then_branch"]
    else_branch: Subgraph = node.attributes["else_branch"]

    def run(environment: Environment, condition: List[bool]) -> Any:
        branch = then_branch if condition[0] else else_branch
        return _given(node, branch.run(environment))

    return run


def loop(node: Node) -> Function:
    """A body that is run up to ``M`` times while a condition holds, and hands values on."""
    body: Subgraph = node.attributes["body"]
    num_carried = len(body.inputs) - 2
    mode = node.mode

    def run(
        environment: Environment,
        limit: Optional[List[int]] = None,
        condition: Optional[List[bool]] = None,
        *carried: Any,
    ) -> Any:
        count = limit[0] if limit else None
        values = list(carried)
        stacks: List[List[torch.Tensor]] = [[] for _ in body.outputs[1 + num_carried :]]
        step, goes_on = 0, condition is None or condition[0]
        flag = torch.tensor(goes_on, device=mode.device)
        while goes_on and (count is None or step < count):
            number = torch.tensor(step, device=mode.device)
            flag, *results = body.run(environment, number, flag, *values)
            values = results[:num_carried]
            for stack, item in zip(stacks, results[num_carried:]):
                stack.append(item)
            step, goes_on = step + 1, bool(flag)
        return _given(node, [*values, *(_stacked(node, stack, 0) for stack in stacks)])

    return run


def scan(node: Node) -> Function:
    """A body that is run over the slices of inputs, hands states on and stacks its results."""
    body: Subgraph = node.attributes["body"]
    num_scanned = node.integer("num_scan_inputs")
    num_states = len(body.inputs) - num_scanned
    num_stacked = len(body.outputs) - num_states
    in_axes = node.integers("scan_input_axes", [0] * num_scanned)
    in_backward = node.integers("scan_input_directions") or [0] * num_scanned
    out_axes = node.integers("scan_output_axes", [0] * num_stacked)
    out_backward = node.integers("scan_output_directions", [0] * num_stacked)

    def run(environment: Environment, *inputs: torch.Tensor) -> Any:
        states: List[torch.Tensor] = list(inputs[:num_states])
        slices = [
            x.unbind(axis)[::-1] if backward else x.unbind(axis)
            for x, axis, backward in zip(inputs[num_states:], in_axes, in_backward)
        ]
        stacks: List[List[torch.Tensor]] = [[] for _ in range(num_stacked)]
        for items in zip(*slices):
            results = body.run(environment, *states, *items)
            states = results[:num_states]
            for stack, item in zip(stacks, results[num_states:]):
                stack.append(item)
        stacked = [
            _stacked(node, stack[::-1] if backward else stack, axis)
            for stack, axis, backward in zip(stacks, out_axes, out_backward)
        ]
        return _given(node, [*states, *stacked])

    return run


def scan_of_batches(node: Node) -> Function:
    """A scan along axis 1 of each sample by itself, behind an absent first input; set 8 only."""
    directions = {"scan_input_directions": node.integers("directions")}
    one = scan(replace(node, attributes={**node.attributes, **directions}))

    def run(environment: Environment, lengths: Any, *inputs: torch.Tensor) -> Any:
        if lengths is not None:
            raise node.refuse("sequence_lens are not supported; leave the first input out")
        samples = [one(environment, *rows) for rows in zip(*(x.unbind(0) for x in inputs))]
        if len(node.outputs) == 1:
            return torch.stack(samples)
        return tuple(torch.stack(rows) for rows in zip(*samples))

    return run


def _stacked(node: Node, items: List[torch.Tensor], axis: int) -> torch.Tensor:
    if not items:
        raise node.refuse("its body was run no time, so the shape of what it stacks is not known")
    return torch.stack(items, axis)


def _given(node: Node, results: List[Any]) -> Any:
    return tuple(results) if len(node.outputs) > 1 else results[0]


OPERATORS = (
    Operator("If", 1, if_, ints=(0,)),
    Operator("Loop", 1, loop, ints=(0, 1)),
    Operator("Scan", 8, scan_of_batches),
    Operator("Scan", 9, scan),
)
