"""Loops and branches on the device; for inference only.

Source: PopTorch 3.4, ``python/ops.py``, ``tests/loop_test.py``, ``tests/if_test.py``.
"""

from __future__ import annotations

from typing import Any, Callable, List

import torch

from unified_ipu_torch.emulated.poptorch.context import current_run
from unified_ipu_torch.emulated.poptorch.errors import Error

Body = Callable[..., Any]


def _only_in_inference(name: str) -> None:
    run = current_run()
    if run is not None and run.training:
        raise Error(f"poptorch.{name}() is only supported in inference", "poptorch_cpp_error")


def for_loop(count: int, body: Body, inputs: List[torch.Tensor]) -> List[torch.Tensor]:
    """Call a function again and again with what it returned.

    Args:
        count: How often.
        body: Takes the tensors, returns as many of the same shapes and types.
        inputs: The first ones.

    Returns:
        The last ones.

    Raises:
        ValueError: If the inputs are no list of tensors.
        Error: If the body returns something else than it takes.
    """
    if not isinstance(inputs, list):
        raise ValueError(
            "poptorch.for_loop expects input tensors (inputs) to be a list of tensors. (Object is "
            "not list)"
        )
    for index, tensor in enumerate(inputs):
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(
                "poptorch.for_loop expects input tensors (inputs) to be a list of tensors. (Object "
                f"contained in list at index {index} is not torch.tensor)"
            )
    _only_in_inference("for_loop")
    state = [tensor.clone() for tensor in inputs]
    for _ in range(count):
        found = _as_list(body(*state))
        _same_form(state, found)
        state = found
    return state


def cond(
    condition: torch.Tensor,
    then_body: Body,
    then_inps: List[torch.Tensor],
    else_body: Body,
    else_inps: List[torch.Tensor],
) -> List[torch.Tensor]:
    """One of two functions, chosen by a value of the device.

    Args:
        condition: One element.
        then_body: Called if it is true.
        then_inps: Its arguments.
        else_body: Called otherwise.
        else_inps: Its arguments.

    Returns:
        What the chosen one returns; the tensors passed in stay as they are.

    Raises:
        ValueError: If the arguments are no lists.
        Error: If the two return different numbers of tensors.
    """
    if not all(isinstance(inputs, list) for inputs in (then_inps, else_inps)):
        raise ValueError(
            "poptorch.cond expects then_inps and else_inps tensors to be a list of tensors. "
            "(Object is not list)"
        )
    run = current_run()
    if run is None:
        return _as_list(then_body(*then_inps) if condition else else_body(*else_inps))
    _only_in_inference("cond")
    # Both are compiled, and what they return has to fit; the device runs one of them.
    first = _as_list(then_body(*[tensor.clone() for tensor in then_inps]))
    second = _as_list(else_body(*[tensor.clone() for tensor in else_inps]))
    if len(first) != len(second):
        raise Error(
            f"the branches of poptorch.cond return {len(first)} and {len(second)} tensors; they "
            "must return as many",
            "poptorch_cpp_error",
        )
    chosen = condition.reshape(()).to(torch.bool)
    return [torch.where(chosen, one, other) for one, other in zip(first, second)]


def _as_list(values: Any) -> List[torch.Tensor]:
    return list(values) if isinstance(values, (list, tuple)) else [values]


def _same_form(before: List[torch.Tensor], after: List[torch.Tensor]) -> None:
    forms = [[(tuple(t.shape), t.dtype) for t in tensors] for tensors in (before, after)]
    if forms[0] != forms[1]:
        raise Error(
            f"the body of poptorch.for_loop takes {forms[0]} and returns {forms[1]}; a loop needs "
            "the same",
            "poptorch_cpp_error",
        )
