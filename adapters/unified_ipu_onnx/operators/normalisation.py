"""Normalisation over batches, instances, groups, layers and neighbouring channels."""

from __future__ import annotations

from typing import Any, List, Optional, Tuple

import torch
from torch.nn import functional

from unified_ipu_onnx.nodes import Node
from unified_ipu_onnx.registry import Function, Operator
from unified_ipu_onnx.tensors import torch_dtype


def batch_normalization(node: Node) -> Function:
    """By the statistics of the micro-batch when the module is training, else by the running ones.

    The running variance is that of the population, and ``momentum`` the share of the old value:
    ONNX's rule, and not torch's.
    """
    epsilon, momentum = node.number("epsilon", 1e-5), node.number("momentum", 0.9)
    if node.opset < 9 and not node.integer("spatial", 1):
        raise node.lacks("spatial = 0, one statistic for each element, is not supported")
    mode, num_outputs = node.mode, len(node.outputs)
    keeps = node.is_state(3), node.is_state(4)

    def run(
        x: torch.Tensor,
        scale: torch.Tensor,
        bias: torch.Tensor,
        mean: torch.Tensor,
        variance: torch.Tensor,
    ) -> Any:
        if not mode.training:
            y = functional.batch_norm(x, mean, variance, scale, bias, False, 0.0, epsilon)
            return y if num_outputs == 1 else (y, mean, variance, mean, variance)[:num_outputs]
        y, batch_mean, inverse = torch.native_batch_norm(
            x, scale, bias, None, None, True, 0.0, epsilon
        )
        with torch.no_grad():
            batch_variance = (inverse.to(variance.dtype).pow(-2) - epsilon).clamp_(min=0)
            new_mean = _moved(mean, batch_mean, momentum, in_place=keeps[0])
            new_variance = _moved(variance, batch_variance, momentum, in_place=keeps[1])
        if num_outputs == 1:
            return y
        return (y, new_mean, new_variance, batch_mean, batch_variance)[:num_outputs]

    return run


def _moved(
    old: torch.Tensor, new: torch.Tensor, momentum: float, *, in_place: bool
) -> torch.Tensor:
    target = old if in_place else old.clone()
    return target.mul_(momentum).add_(new.to(old.dtype), alpha=1.0 - momentum)


def instance_normalization(node: Node) -> Function:
    """By the statistics of each channel of each sample."""
    epsilon = node.number("epsilon", 1e-5)

    def run(x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return functional.group_norm(x, x.shape[1], scale, bias, epsilon)

    return run


def group_normalization(node: Node) -> Function:
    """By the statistics of groups of channels; scale and bias a channel, in set 18 a group."""
    epsilon, num_groups = node.number("epsilon", 1e-5), node.integer("num_groups")
    a_group = node.opset < 21

    def run(x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        if a_group:
            repeats = x.shape[1] // num_groups
            scale, bias = scale.repeat_interleave(repeats), bias.repeat_interleave(repeats)
        return functional.group_norm(x, num_groups, scale, bias, epsilon)

    return run


def layer_normalization(node: Node) -> Function:
    """By the statistics of all axes from ``axis`` on; with them, if they are asked for."""
    axis, epsilon = node.integer("axis", -1), node.number("epsilon", 1e-5)
    stash = torch_dtype(node.integer("stash_type", 1))
    wants_statistics = len(node.outputs) > 1

    def run(x: torch.Tensor, scale: torch.Tensor, bias: Optional[torch.Tensor] = None) -> Any:
        shape = x.shape[axis:]
        if not wants_statistics and scale.shape == shape and (bias is None or bias.shape == shape):
            return functional.layer_norm(x, shape, scale, bias, epsilon)
        axes = _from(x, axis)
        wide = x.to(torch.promote_types(stash, x.dtype))
        mean = wide.mean(axes, keepdim=True)
        centred = wide - mean
        inverse = torch.rsqrt(centred.square().mean(axes, keepdim=True) + epsilon)
        y = (centred * inverse).to(x.dtype) * scale
        y = y if bias is None else y + bias
        if not wants_statistics:
            return y
        return (y, mean.to(stash), inverse.to(stash))[: len(node.outputs)]

    return run


def rms_normalization(node: Node) -> Function:
    """By the root mean square of all axes from ``axis`` on."""
    axis, epsilon = node.integer("axis", -1), node.number("epsilon", 1e-5)
    stash = torch_dtype(node.integer("stash_type", 1))

    def run(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        wide = x.to(torch.promote_types(stash, x.dtype))
        square = wide.square().mean(_from(x, axis), keepdim=True)
        return (wide * torch.rsqrt(square + epsilon)).to(x.dtype) * scale

    return run


def _from(x: torch.Tensor, axis: int) -> List[int]:
    return list(range(axis % x.dim(), x.dim()))


def local_response(node: Node) -> Function:
    """By the mean square over neighbouring channels; more of them after than before."""
    size = node.integer("size")
    alpha, beta = node.number("alpha", 1e-4), node.number("beta", 0.75)
    constant = node.number("bias", 1.0)
    sides: Tuple[int, int] = ((size - 1) // 2, size // 2)

    def run(x: torch.Tensor) -> torch.Tensor:
        planes = x.square().reshape(x.shape[0], 1, x.shape[1], -1)
        padded = functional.pad(planes, (0, 0, *sides))
        means = functional.avg_pool2d(padded, (size, 1), stride=1).reshape(x.shape)
        return x / (constant + alpha * means) ** beta

    return run


OPERATORS = (
    Operator("BatchNormalization", 1, batch_normalization, couples=True),
    Operator("GroupNormalization", 18, group_normalization),
    Operator("InstanceNormalization", 1, instance_normalization),
    Operator("LayerNormalization", 17, layer_normalization),
    Operator("LRN", 1, local_response),
    Operator("RMSNormalization", 23, rms_normalization),
)
