"""Batch norm over the micro-batches of all replicas, of equal size or not.

Each rank gives its count, mean and sum of squared deviations a channel, in float64; they are
combined in rank order, so that all ranks hold the same bits. torch's own ``SyncBatchNorm`` needs
process groups and, in training, a GPU.

Running statistics follow torch's rule: the mean, and the *unbiased* variance (n - 1, n counted over
all ranks), moved by ``momentum``. They are the same on all ranks.
"""

from __future__ import annotations

import copy
from typing import Any, Dict, Optional, Tuple

import numpy as np
import torch
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from unified_ipu.comms import Communicator
from unified_ipu.errors import ConfigError, DataError
from unified_ipu_torch.collectives import from_host, outside_graphs, to_host


class _Link:
    """Holds a communicator, which neither a copy nor a file of the model may take along."""

    def __init__(self, communicator: Optional[Communicator]) -> None:
        self.communicator = communicator

    def __deepcopy__(self, memo: Any) -> _Link:
        return self

    def __reduce__(self) -> Tuple[Any, ...]:
        return _Link, (None,)


class SyncBatchNorm(_BatchNorm):
    """Batch norm whose statistics in training are those of all ranks together.

    Input ``[rows, channels, ...]``, any number of further axes, on the CPU or a GPU. With one rank,
    and in evaluation, it is exactly ``torch.nn.BatchNorm``. In a session every rank runs it in
    every micro-batch, also on no rows (L1.5): statistics are those of one micro-batch of each
    replica.

    Args:
        num_features: Channels, axis 1.
        communicator: ``session.communicator()``.
        eps: Added to the variance.
        momentum: Weight of the new statistics in the running ones; None: their plain average.
        affine: Whether it has a weight and a bias.
        track_running_stats: Whether it has running statistics. Without them evaluation uses those
            of its own rows alone.
        device: Of its tensors.
        dtype: Of its tensors.
    """

    holds_collectives = True
    """Tells the session that this module must run on all ranks alike."""

    def __init__(
        self,
        num_features: int,
        communicator: Communicator,
        *,
        eps: float = 1e-5,
        momentum: Optional[float] = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(
            num_features, eps, momentum, affine, track_running_stats, device=device, dtype=dtype
        )
        self._link = _Link(communicator)

    def _check_input_dim(self, input: torch.Tensor) -> None:  # noqa: A002 torch's name
        if input.dim() < 2:  # noqa: PLR2004 rows and channels
            raise ValueError(f"expected at least 2 axes (rows, channels), got {input.dim()}")

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 torch's name
        """Normalise, and move the running statistics in training.

        Args:
            input: ``[rows, channels, ...]``; rows may be 0.

        Returns:
            A tensor of the same shape.

        Raises:
            ConfigError: If the model was loaded from a file and has no communicator any more.
            DataError: On all ranks, if there is one value a channel in all.
        """
        communicator = self._link.communicator
        if not self.training or (communicator is not None and communicator.size == 1):
            return super().forward(input)
        return self._normalised(input, communicator)

    @outside_graphs
    def _normalised(self, rows: torch.Tensor, communicator: Optional[Communicator]) -> torch.Tensor:
        if communicator is None:
            raise ConfigError(
                "this SyncBatchNorm came from a copy in a file and has no communicator; call "
                "convert_sync_batch_norm(model, session.communicator()) again"
            )
        self._check_input_dim(rows)
        if rows.dtype in {torch.float16, torch.bfloat16}:
            # Squares overflow in the one, and are of 8 bits in the other.
            return self._normalised(rows.float(), communicator).to(rows.dtype)
        count, mean, variance = _statistics(rows.detach(), communicator)
        if count <= 1:
            raise DataError(
                "batch norm in training needs more than one value a channel over all replicas, "
                f"got {count} of shape {list(rows.shape)}; raise batch.global_batch_size"
            )
        self._move(count, mean, variance)
        # torch gives Function.apply no types
        result: torch.Tensor = _Normalise.apply(  # type: ignore[no-untyped-call]
            rows,
            self.weight,
            self.bias,
            mean,
            torch.rsqrt(variance + self.eps),
            count,
            communicator,
        )
        return result

    def _move(self, count: int, mean: torch.Tensor, variance: torch.Tensor) -> None:
        counter, running_mean, running_var = (
            self.num_batches_tracked,
            self.running_mean,
            self.running_var,
        )
        if counter is None or running_mean is None or running_var is None:
            return
        with torch.no_grad():
            counter.add_(1)
            momentum = 1.0 / float(counter) if self.momentum is None else self.momentum
            unbiased = variance * (count / (count - 1))
            for running, new in ((running_mean, mean), (running_var, unbiased)):
                running.mul_(1.0 - momentum).add_(new.to(running.dtype), alpha=momentum)


def convert_sync_batch_norm(model: torch.nn.Module, communicator: Communicator) -> torch.nn.Module:
    """Replace every batch norm of a model; parameters and buffers stay the same objects.

    Args:
        model: Changed in place, unless it is a batch norm itself.
        communicator: ``session.communicator()``.

    Returns:
        The model, or its replacement.

    Raises:
        ConfigError: If a batch norm is lazy and has no size yet.
    """
    return _converted(model, communicator, {})


def _converted(
    module: torch.nn.Module, communicator: Communicator, done: Dict[int, torch.nn.Module]
) -> torch.nn.Module:
    if id(module) in done:  # one module under two names stays one
        return done[id(module)]
    result: torch.nn.Module = module
    if isinstance(module, _BatchNorm):
        result = _replacement(module, communicator)
    done[id(module)] = result
    for name, child in module.named_children():
        new = _converted(child, communicator, done)
        if new is not child:
            setattr(result, name, new)
    return result


def _replacement(norm: _BatchNorm, communicator: Communicator) -> SyncBatchNorm:
    if any(is_lazy(tensor) for tensor in [*norm.parameters(), *norm.buffers()]):
        raise ConfigError(
            f"{type(norm).__name__} is lazy and has no size yet; run one batch through the model "
            "before converting it"
        )
    made = SyncBatchNorm(
        norm.num_features,
        communicator,
        eps=norm.eps,
        momentum=norm.momentum,
        affine=norm.affine,
        track_running_stats=norm.track_running_stats,
    )
    made._parameters = copy.copy(norm._parameters)  # noqa: SLF001 the optimizer may hold them
    # SLF001: a module of another class takes over these very tensors; torch has no public way
    made._buffers = copy.copy(norm._buffers)  # noqa: SLF001
    made.training = norm.training
    return made


def _statistics(
    x: torch.Tensor, communicator: Communicator
) -> Tuple[int, torch.Tensor, torch.Tensor]:
    """Count, mean and population variance a channel over all ranks, float64."""
    axes = [axis for axis in range(x.dim()) if axis != 1]
    channels = x.shape[1]
    count = x.numel() // channels
    row = np.zeros((1, 1 + 2 * channels))
    if count:
        mean = x.mean(axes, dtype=torch.float64)
        near = mean.to(x.dtype)
        squares = (x - _along(near, x)).square().sum(axes, dtype=torch.float64)
        # Deviations were taken from the rounded mean.
        squares -= count * (mean - near.double()).square()
        row[0, 0] = count
        row[0, 1 : 1 + channels] = to_host(mean)
        row[0, 1 + channels :] = to_host(squares)
    ranks = np.concatenate(communicator.all_gather(row, name="batch norm"))
    counts, means, squares_of = ranks[:, :1], ranks[:, 1 : 1 + channels], ranks[:, 1 + channels :]
    total = int(counts.sum())
    if total == 0:
        return 0, torch.zeros(channels), torch.ones(channels)
    grand = (counts * means).sum(0) / total
    spread = (squares_of + counts * np.square(means - grand)).sum(0) / total
    return total, from_host(grand, x), from_host(np.maximum(spread, 0.0), x)


def _along(values: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """``[channels]`` as a view that broadcasts over axis 1 of ``x``."""
    return values.reshape([1, -1] + [1] * (x.dim() - 2))


class _Normalise(torch.autograd.Function):
    """``(x - mean) / deviation * weight + bias``, where mean and deviation follow from x."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: Optional[torch.Tensor],
        bias: Optional[torch.Tensor],
        mean: torch.Tensor,
        inverse: torch.Tensor,
        count: int,
        communicator: Communicator,
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight, mean, inverse)
        ctx.count, ctx.communicator = count, communicator
        normal = (x - _along(mean.to(x.dtype), x)) * _along(inverse.to(x.dtype), x)
        if weight is not None:
            normal = normal * _along(weight, x)
        return normal if bias is None else normal + _along(bias, x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        x, weight, mean, inverse = ctx.saved_tensors
        axes = [axis for axis in range(x.dim()) if axis != 1]
        centred = x - _along(mean.to(x.dtype), x)
        plain = gradient.sum(axes, dtype=torch.float64)
        crossed = (gradient * centred).sum(axes, dtype=torch.float64)
        for_x = for_weight = for_bias = None
        if ctx.needs_input_grad[0]:
            mine = np.stack([to_host(plain), to_host(crossed)])
            total = ctx.communicator.all_reduce(mine, name="batch norm backward") / ctx.count
            of_mean, of_inverse = (_along(from_host(t, x).to(x.dtype), x) for t in total)
            inverse_x = _along(inverse.to(x.dtype), x)
            for_x = (gradient - of_mean - centred * inverse_x.square() * of_inverse) * inverse_x
            if weight is not None:
                for_x = for_x * _along(weight, x)
        if weight is not None and ctx.needs_input_grad[1]:
            for_weight = (crossed * inverse).to(weight.dtype)
        if ctx.needs_input_grad[2]:
            for_bias = plain.to(gradient.dtype)
        return for_x, for_weight, for_bias, None, None, None, None
