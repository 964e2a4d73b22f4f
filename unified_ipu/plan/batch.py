"""Batch arithmetic, written once: which samples are behind which update, on which replica.

Update ``u`` takes the positions ``[u*G, (u+1)*G)`` of an epoch, G the global batch size.
Micro-batch ``m = a*R + r`` of it, the ``a``-th of replica ``r`` of R, takes the at most B positions
from ``u*G + m*B``, cut at the end of the update and of the epoch. Nothing here depends on the size
of the data set: all of it is O(1) or lazy.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt
from typing import Iterator, Optional, Tuple

from unified_ipu.errors import ConfigError, PlanError
from unified_ipu.plan.plan import Plan

REMAINDERS = ("exact", "pad", "drop")


@dataclass(frozen=True)
class MicroSpan:
    """The positions behind one micro-batch.

    Args:
        index: ``m``, its place in the update (in evaluation: in the epoch) over all replicas.
        start: First position in the epoch.
        stop: One past the last real position.
        rows: Rows to deliver; those beyond ``stop - start`` are padding.
    """

    index: int
    start: int
    stop: int
    rows: int


@dataclass(frozen=True)
class BatchPlan:
    """How samples are dealt to updates, micro-batches and replicas.

    Args:
        global_batch_size: G, samples behind one update.
        micro_batch_size: B, most samples a replica computes at once.
        num_replicas: R, counted over the world.
        updates_per_call: Updates in one entry into the device.
        remainder: ``"exact"``: the last update of an epoch is as short as what is left;
            ``"pad"``: it is filled with rows of weight 0; ``"drop"``: a short one is left out.
    """

    global_batch_size: int
    micro_batch_size: int
    num_replicas: int = 1
    updates_per_call: int = 1
    remainder: str = "exact"

    def __post_init__(self) -> None:
        for name in ("global_batch_size", "micro_batch_size", "num_replicas", "updates_per_call"):
            if getattr(self, name) < 1:
                raise PlanError(f"{name}: got {getattr(self, name)}; expected an integer >= 1")
        if self.remainder not in REMAINDERS:
            raise PlanError(
                f"remainder: got {self.remainder!r}; expected one of {', '.join(REMAINDERS)}"
            )
        if self.remainder == "pad":
            self._check_static_shapes()

    @classmethod
    def from_plan(cls, plan: Plan, num_replicas: int) -> BatchPlan:
        """Derive what the plan leaves open, now that the number of replicas is known.

        Args:
            plan: Its ``[batch]`` table counts.
            num_replicas: Over the world, at least 1.

        Returns:
            The arithmetic of this world.

        Raises:
            PlanError: If ``global_batch_size`` and ``accumulation_per_replica`` are both given
                and do not agree, or ``remainder = "pad"`` and the update cannot be filled.
        """
        batch = plan.batch
        accumulation = batch.accumulation_per_replica
        global_size = batch.global_batch_size
        per_round = batch.micro_batch_size * num_replicas
        if global_size is None:
            # The table sees to it that one of the two is there.
            global_size = per_round * (accumulation or 1)
        derived = -(-global_size // per_round)
        if accumulation is not None and accumulation != derived:
            raise PlanError(
                f"batch.accumulation_per_replica: got {accumulation}, but global_batch_size "
                f"{global_size} with micro_batch_size {batch.micro_batch_size} on {num_replicas} "
                f"replicas makes {derived}; leave one of the two out, or set "
                f"accumulation_per_replica = {derived} or global_batch_size = "
                f"{per_round * accumulation}"
            )
        return cls(
            global_size,
            batch.micro_batch_size,
            num_replicas,
            batch.updates_per_call,
            batch.remainder,
        )

    @property
    def accumulation_per_replica(self) -> int:
        """Micro-batches of the busiest replica behind one update."""
        return -(-self.global_batch_size // (self.micro_batch_size * self.num_replicas))

    @property
    def num_micro_batches(self) -> int:
        """Micro-batches behind one full update, over all replicas."""
        return -(-self.global_batch_size // self.micro_batch_size)

    @property
    def num_idle_replicas(self) -> int:
        """Replicas that have no sample in any update."""
        return max(0, self.num_replicas - self.num_micro_batches)

    def num_updates(self, samples: int) -> int:
        """Updates in an epoch of ``samples``."""
        if self.remainder == "drop":
            return samples // self.global_batch_size
        return -(-samples // self.global_batch_size)

    def num_calls(self, samples: int, start_update: int = 0) -> int:
        """Calls in what is left of an epoch from ``start_update``."""
        left = max(0, self.num_updates(samples) - start_update)
        return -(-left // self.updates_per_call)

    def used_samples(self, samples: int) -> int:
        """Samples of an epoch that are behind some update."""
        return samples - self.dropped(samples)

    def dropped(self, samples: int) -> int:
        """Samples of an epoch that are left out."""
        return samples % self.global_batch_size if self.remainder == "drop" else 0

    def padded(self, samples: int) -> int:
        """Rows of weight 0 that fill the last update of an epoch."""
        return -samples % self.global_batch_size if self.remainder == "pad" else 0

    def check_samples(self, samples: int) -> None:
        """Refuse a data set that is too small for a single update.

        Args:
            samples: Size of the data set.

        Raises:
            ConfigError: If an epoch would have no update.
        """
        if self.num_updates(samples) > 0:
            return
        if samples < 1:
            raise ConfigError(f"the data set has {samples} samples; expected at least 1")
        raise ConfigError(
            f"{samples} samples are fewer than the global batch of {self.global_batch_size} "
            f"(micro_batch_size {self.micro_batch_size}, num_replicas {self.num_replicas}, "
            f"accumulation_per_replica {self.accumulation_per_replica}, updates_per_call "
            f'{self.updates_per_call}) and remainder = "drop" would drop them all; set '
            f'batch.remainder = "exact", or batch.global_batch_size to {samples} or less'
        )

    def update_span(self, update: int, samples: int) -> Tuple[int, int]:
        """Real positions ``[start, stop)`` of one update.

        Args:
            update: Index in the epoch.
            samples: Size of the data set.

        Returns:
            Its first position and one past its last.

        Raises:
            ConfigError: If the epoch has no such update.
        """
        num_updates = self.num_updates(samples)
        if not 0 <= update < num_updates:
            raise ConfigError(
                f"update: got {update}; an epoch of {samples} samples has {num_updates} updates, "
                "counted from 0"
            )
        start = update * self.global_batch_size
        return start, min(start + self.global_batch_size, samples)

    def micro_spans(self, update: int, replica: int, samples: int) -> Tuple[MicroSpan, ...]:
        """Micro-batches of one replica behind one update, in order.

        Args:
            update: Index in the epoch.
            replica: ``0 <= replica < num_replicas``.
            samples: Size of the data set.

        Returns:
            At most ``accumulation_per_replica`` spans; those without rows are left out.

        Raises:
            ConfigError: If there is no such update or replica.
        """
        self._check_replica(replica)
        start, stop = self.update_span(update, samples)
        pads = self.remainder == "pad"
        end = start + self.global_batch_size if pads else stop
        size = self.micro_batch_size
        spans = []
        for index in range(replica, -(-(end - start) // size), self.num_replicas):
            first = start + index * size
            rows = min(size, end - first)
            real = max(0, min(size, stop - first))
            spans.append(MicroSpan(index, first, first + real, rows))
        return tuple(spans)

    def calls(self, samples: int, start_update: int = 0) -> Iterator[range]:
        """Update numbers of each call of what is left of an epoch, lazily."""
        num_updates = self.num_updates(samples)
        for first in range(start_update, num_updates, self.updates_per_call):
            yield range(first, min(first + self.updates_per_call, num_updates))

    def num_evaluation_spans(
        self, replica: int, samples: int, micro_batch_size: Optional[int] = None
    ) -> int:
        """Micro-batches of one replica in evaluation."""
        self._check_replica(replica)
        total = -(-samples // self._evaluation_size(micro_batch_size))
        return max(0, -(-(total - replica) // self.num_replicas))

    def evaluation_spans(
        self, replica: int, samples: int, micro_batch_size: Optional[int] = None
    ) -> Iterator[MicroSpan]:
        """Micro-batches of one replica in evaluation, lazily.

        The global batch plays no part and nothing is dropped: micro-batch ``k`` goes to replica
        ``k mod R``. With ``remainder = "pad"`` the last one is filled up.

        Args:
            replica: ``0 <= replica < num_replicas``.
            samples: Size of the data set.
            micro_batch_size: Instead of the plan's; at least 1.

        Returns:
            The spans in order.

        Raises:
            ConfigError: If there is no such replica or ``micro_batch_size`` is less than 1.
        """
        size = self._evaluation_size(micro_batch_size)
        count = self.num_evaluation_spans(replica, samples, size)
        pads = self.remainder == "pad"

        def spans() -> Iterator[MicroSpan]:
            for index in range(replica, replica + count * self.num_replicas, self.num_replicas):
                start = index * size
                stop = min(start + size, samples)
                yield MicroSpan(index, start, stop, size if pads else stop - start)

        return spans()

    def _evaluation_size(self, micro_batch_size: Optional[int]) -> int:
        size = self.micro_batch_size if micro_batch_size is None else micro_batch_size
        if size < 1:
            raise ConfigError(f"micro_batch_size: got {size}; expected an integer >= 1")
        return size

    def _check_replica(self, replica: int) -> None:
        if not 0 <= replica < self.num_replicas:
            raise ConfigError(
                f"replica: got {replica}; there are {self.num_replicas}, counted from 0"
            )

    def _check_static_shapes(self) -> None:
        per_round = self.micro_batch_size * self.num_replicas
        if self.global_batch_size % per_round == 0:
            return
        near = self._nearest_micro_batch_sizes()
        advice = (
            f"set batch.micro_batch_size = {' or '.join(map(str, near))}"
            if near
            else f"no micro_batch_size does it with {self.num_replicas} replicas: change mesh.data"
        )
        raise PlanError(
            f'batch.remainder: "pad" needs global_batch_size = micro_batch_size x '
            f"accumulation_per_replica x replicas; got {self.global_batch_size} with "
            f"micro_batch_size {self.micro_batch_size} on {self.num_replicas} replicas; {advice}, "
            'or batch.remainder = "exact"'
        )

    def _nearest_micro_batch_sizes(self) -> Tuple[int, ...]:
        """The next smaller and the next larger B that fills the update, where they exist."""
        if self.global_batch_size % self.num_replicas:
            return ()
        share = self.global_batch_size // self.num_replicas
        small = [b for b in range(1, isqrt(share) + 1) if share % b == 0]
        sizes = sorted({*small, *(share // b for b in small)})
        smaller = [b for b in sizes if b < self.micro_batch_size]
        larger = [b for b in sizes if b > self.micro_batch_size]
        return (*smaller[-1:], *larger[:1])
