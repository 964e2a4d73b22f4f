"""The communicator over c10d: gloo for what lies on the host, NCCL or RCCL for CUDA tensors.

Signatures go over gloo in both cases, so ranks that disagree find out before a device is asked.
Sums of halves are made in float32 and rounded once, as on the host.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
import torch.distributed as dist

from unified_ipu.comms import ArrangedCommunicator, build_signature, check_root
from unified_ipu_torch.c10d_wire import GlooWire

_OPERATIONS: Dict[str, Any] = {
    "sum": dist.ReduceOp.SUM,
    "mean": dist.ReduceOp.SUM,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
}
_HALVES = (torch.float16, torch.bfloat16)
GroupBuilder = Callable[[Any, int, int], Any]


class C10dCommunicator(ArrangedCommunicator):
    """``Communicator`` over torch's process groups.

    Args:
        wire: Over gloo.
        build_device_group: ``(store, rank, size)`` to what serves tensors on the device.
        is_on_device: Whether an array is such a tensor.
    """

    def __init__(
        self,
        wire: GlooWire,
        *,
        build_device_group: Optional[GroupBuilder] = None,
        is_on_device: Optional[Callable[[Any], bool]] = None,
    ) -> None:
        super().__init__(wire)
        self._gloo = wire
        self._build_device_group = build_device_group or _build_nccl
        self._is_on_device = is_on_device or _is_cuda
        self._device_group: Any = None

    def all_reduce(self, array: Any, *, op: str = "sum", out: Any = None, name: str = "") -> Any:
        """Reduce over ranks; a CUDA tensor stays on its device."""
        if not self._is_on_device(array):
            return super().all_reduce(array, op=op, out=out, name=name)
        total = self._reduce_device("all_reduce", array, op, out, name)
        return total if out is None else out.copy_(total)

    def reduce(
        self, array: Any, *, root: int, op: str = "sum", out: Any = None, name: str = ""
    ) -> Any:
        """Reduce to the root; None elsewhere."""
        if not self._is_on_device(array):
            return super().reduce(array, root=root, op=op, out=out, name=name)
        keeps = root == self.rank
        problem = check_root(root, self.size)
        kept = out if keeps else None
        total = self._reduce_device(f"reduce root={root}", array, op, kept, name, problem)
        if not keeps:
            return None
        return total if out is None else out.copy_(total)

    def reduce_scatter(
        self, array: Any, *, op: str = "sum", out: Any = None, name: str = ""
    ) -> Any:
        """Reduce, and keep this rank's rows."""
        if not self._is_on_device(array):
            return super().reduce_scatter(array, op=op, out=out, name=name)
        problem = "" if array.dim() else "a scalar has no axis 0 to scatter"
        rows = array.shape[0] if array.dim() else 0
        start, stop = self._rows(rows)
        if out is not None and tuple(out.shape) != (stop - start, *array.shape[1:]):
            problem = problem or f"out is a {tuple(out.shape)}"
        total = self._reduce_device("reduce_scatter", array, op, None, name, problem)
        part = total[start:stop]
        return part if out is None else out.copy_(part)

    def broadcast(self, array: Any, *, root: int = 0, out: Any = None, name: str = "") -> Any:
        """The root's array on every rank."""
        if not self._is_on_device(array):
            return super().broadcast(array, root=root, out=out, name=name)
        text = f"broadcast root={root} {array.dtype} {tuple(array.shape)}"
        problem = check_root(root, self.size) or _check_out(array, out)
        self._begin(text, name, problem)
        sent = array.detach().clone(memory_format=torch.contiguous_format)
        self._broadcast_device(sent, root)
        self._exchange.finish()
        return sent if out is None else out.copy_(sent)

    def all_gather(self, array: Any, *, name: str = "") -> List[Any]:
        """Arrays of all ranks, of any number of rows each."""
        if not self._is_on_device(array):
            return super().all_gather(array, name=name)
        problem = "" if array.dim() else "a scalar has no axis 0 to gather along"
        rows = array.shape[0] if array.dim() else 0
        tail = tuple(array.shape[1:])
        counts = self._begin(f"all_gather {array.dtype} (*, {tail})", name, problem, rows)
        parts = [array.new_empty((count, *tail)) for count in counts]
        parts[self.rank].copy_(array.detach())
        for rank, part in enumerate(parts):
            self._broadcast_device(part, rank)
        self._exchange.finish()
        return parts

    def _over(self, wire: Any) -> C10dCommunicator:
        return C10dCommunicator(
            wire,
            build_device_group=self._build_device_group,
            is_on_device=self._is_on_device,
        )

    def close(self) -> None:
        """Leave; ranks that still wait for this one raise ``PeerLostError``."""
        self._device_group = None
        super().close()

    def _reduce_device(
        self, verb: str, array: Any, op: str, out: Any, name: str, problem: str = ""
    ) -> Any:
        text = f"{verb} {op} {array.dtype} {tuple(array.shape)} on {array.device.type}"
        self._begin(text, name, problem or _check_operation(op, array) or _check_out(array, out))
        wide = torch.float32 if array.dtype in _HALVES else array.dtype
        total = array.detach().to(wide, copy=True, memory_format=torch.contiguous_format)
        options = dist.AllreduceOptions()
        options.reduceOp = _OPERATIONS[op]
        flat = torch.view_as_real(total) if total.is_complex() else total
        self._finish_device(self._group().allreduce([flat.reshape(-1)], options))
        self._exchange.finish()
        return (total / self.size if op == "mean" else total).to(array.dtype)

    def _broadcast_device(self, tensor: Any, root: int) -> None:
        if tensor.numel():
            options = dist.BroadcastOptions()
            options.rootRank = root
            self._finish_device(self._group().broadcast([tensor], options))

    def _begin(self, text: str, name: str, problem: str, number: int = 0) -> List[int]:
        return self._exchange.begin(build_signature(text, name, problem), number)[0]

    def _group(self) -> Any:
        if self._device_group is None:
            # All ranks come here together: they have just compared signatures.
            self._device_group = self._build_device_group(self._gloo.store, self.rank, self.size)
        return self._device_group

    def _finish_device(self, work: Any) -> None:
        self._gloo.poll(work, self._exchange.waiting())

    def _rows(self, rows: int) -> Tuple[int, int]:
        small, extra = divmod(rows, self.size)
        start = self.rank * small + min(self.rank, extra)
        return start, start + small + (self.rank < extra)


def _build_nccl(store: Any, rank: int, size: int) -> Any:
    c10d: Any = dist  # CPU builds of torch have no such class, and no tensor that comes here
    nccl = c10d.ProcessGroupNCCL
    return nccl(c10d.PrefixStore("nccl", store), rank, size, nccl.Options())


def _is_cuda(array: Any) -> bool:
    return isinstance(array, torch.Tensor) and array.is_cuda


def _check_operation(op: str, array: torch.Tensor) -> str:
    """Why ``op`` cannot be applied, or ""; the rules of tensors on the host."""
    is_number = array.is_floating_point() or array.is_complex()
    if op not in _OPERATIONS:
        return f"op {op!r} is not one of {', '.join(_OPERATIONS)}"
    if op == "mean" and not is_number:
        return f"the mean of {array.dtype} is not defined; cast to a float, or use sum"
    if op == "sum" and array.dtype == torch.bool:
        return "a sum of bool would not count; cast to an integer, or use max (any), min (all)"
    if op in {"max", "min"} and array.is_complex():
        return f"complex numbers have no {op}; reduce real and imaginary parts"
    return ""


def _check_out(array: torch.Tensor, out: Any) -> str:
    if out is None or (out.shape == array.shape and out.dtype == array.dtype):
        return ""
    return (
        f"out is a {out.dtype} {tuple(out.shape)}, the result a {array.dtype} {tuple(array.shape)}"
    )
