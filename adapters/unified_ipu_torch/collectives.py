"""Collectives that autograd sees, with one convention for their gradients.

**The convention**: backward gives the gradient of the *sum* of all ranks' losses. It is what the
update law adds up, so nothing has to be rescaled: with W = 1 on each of two ranks, an update uses
half of it, the gradient of the mean.

=============== ===========================================================
forward         backward
=============== ===========================================================
all_reduce sum  sum of all ranks' gradients
all_reduce mean mean of all ranks' gradients
broadcast       on the root the sum of all ranks' gradients, elsewhere 0
all_gather      the sum of all ranks' gradients of this rank's rows
=============== ===========================================================

Backward is collective as well: every rank must go through it, in the same order. A module that
uses these in ``forward`` says so with an attribute ``holds_collectives = True``; a session then
runs every micro-batch on every rank, empty ones where a rank has no rows.
"""

from __future__ import annotations

from typing import Any, Callable, List, Tuple, TypeVar, cast

import torch
from torch.autograd.function import once_differentiable

from unified_ipu.comms import Communicator
from unified_ipu.errors import CollectiveError

Function = TypeVar("Function", bound=Callable[..., Any])

_LINEAR = ("sum", "mean")


def outside_graphs(function: Function) -> Function:
    """Keep ``torch.compile`` from tracing into the transport; it breaks the graph there."""
    disable: Any
    if hasattr(torch, "compiler"):
        disable = torch.compiler.disable
    else:
        from torch._dynamo import disable  # torch 2.0
    return cast("Function", disable(function))


@outside_graphs
def all_reduce(
    tensor: torch.Tensor, communicator: Communicator, *, op: str = "sum"
) -> torch.Tensor:
    """Sum or mean over ranks, the same bits on all of them.

    Args:
        tensor: Of one shape and dtype on all ranks.
        communicator: Of the session, ``session.communicator()``.
        op: ``"sum"`` or ``"mean"``.

    Returns:
        A new tensor on the same device.

    Raises:
        CollectiveError: If ``op`` has no gradient here, or the ranks disagree.
    """
    if op not in _LINEAR:
        raise CollectiveError(f"op={op!r} has no gradient here; expected one of {_LINEAR}")
    # torch gives Function.apply no types
    result: torch.Tensor = _AllReduce.apply(tensor, communicator, op)  # type: ignore[no-untyped-call]
    return result


@outside_graphs
def broadcast(tensor: torch.Tensor, communicator: Communicator, *, root: int = 0) -> torch.Tensor:
    """Return the root's tensor on every rank.

    Args:
        tensor: Of one shape and dtype on all ranks; only the root's values matter.
        communicator: Of the session.
        root: Whose values.

    Returns:
        A new tensor on the same device.

    Raises:
        CollectiveError: If the ranks disagree.
    """
    # torch gives Function.apply no types
    result: torch.Tensor = _Broadcast.apply(tensor, communicator, root)  # type: ignore[no-untyped-call]
    return result


@outside_graphs
def all_gather(tensor: torch.Tensor, communicator: Communicator) -> Tuple[torch.Tensor, ...]:
    """Return every rank's tensor, in rank order.

    Args:
        tensor: At least one axis; the sizes of axis 0 may differ between ranks, and may be 0.
        communicator: Of the session.

    Returns:
        New tensors on the same device, one a rank.

    Raises:
        CollectiveError: If the ranks disagree.
    """
    # torch gives Function.apply no types
    result: Tuple[torch.Tensor, ...] = _AllGather.apply(tensor, communicator)  # type: ignore[no-untyped-call]
    return result


def to_host(tensor: torch.Tensor) -> Any:
    """Numpy array over a tensor's values, contiguous; copied from a device, else shared."""
    return tensor.detach().contiguous().cpu().numpy()


def from_host(array: Any, like: torch.Tensor) -> torch.Tensor:
    """Tensor over a numpy array, on the device of ``like``."""
    return torch.from_numpy(array).to(like.device)


class _AllReduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, communicator: Communicator, op: str) -> Any:
        ctx.communicator, ctx.op = communicator, op
        return from_host(communicator.all_reduce(to_host(tensor), op=op), tensor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        total = ctx.communicator.all_reduce(to_host(gradient), op=ctx.op, name="backward")
        return from_host(total, gradient), None, None


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, communicator: Communicator, root: int) -> Any:
        ctx.communicator, ctx.root = communicator, root
        return from_host(communicator.broadcast(to_host(tensor), root=root), tensor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        total = ctx.communicator.reduce(to_host(gradient), root=ctx.root, name="backward")
        if ctx.communicator.rank != ctx.root:
            return torch.zeros_like(gradient), None, None
        return from_host(total, gradient), None, None


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, communicator: Communicator) -> Any:
        parts = communicator.all_gather(to_host(tensor))
        ctx.communicator = communicator
        ctx.sizes = [part.shape[0] for part in parts]
        return tuple(from_host(part, tensor) for part in parts)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        rows: List[int] = ctx.sizes
        rank = ctx.communicator.rank
        total = ctx.communicator.all_reduce(to_host(torch.cat(gradients)), name="backward")
        start = sum(rows[:rank])
        return from_host(total[start : start + rows[rank]].copy(), gradients[rank]), None
