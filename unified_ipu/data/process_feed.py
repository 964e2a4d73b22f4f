"""Micro-batches from the data processes of a host, which the first rank on it starts."""

from __future__ import annotations

import os
import secrets
import socket
import sys
import weakref
from functools import partial
from pathlib import Path
from typing import Any, Dict, List, Optional, Protocol, Sequence, Tuple, Union

from unified_ipu.adapter import Copies, CopyReason
from unified_ipu.comms import Communicator
from unified_ipu.data.dataset_source import DatasetSource, FunctionDataset
from unified_ipu.data.feed import Delivery
from unified_ipu.data.messages import Channel, Kind, Message
from unified_ipu.data.pipeline_source import PipelineSource, StreamSource
from unified_ipu.data.ring_reader import RingReader
from unified_ipu.data.schedule import Portion, Schedule
from unified_ipu.data.worker_process import WorkerProcess
from unified_ipu.data.worker_start import pack
from unified_ipu.errors import DataError
from unified_ipu.events import Counters
from unified_ipu.plan import DataSettings
from unified_ipu.world import allowed_cpus, running_on


class Closable(Protocol):
    """What is let go of at the end."""

    def close(self) -> None:
        """Let go."""
        ...


class ProcessFeed:
    """Reads a source that runs in the data processes of this host. Making one is collective.

    With n of them, each makes every n-th micro-batch of every rank, and they are read in turn:
    the order stays.

    Args:
        source: The pipeline, stream or dataset.
        num_workers: Data processes of this host, at least 1; a stream has one.
        schedule: Who gets what.
        replica: The first one of this process.
        communicator: Of all replicas.
        counters: Are told of copied batches.
        settings: The plan's ``[data]`` table.
        search_path: Where the pipeline's module is looked for first.
        name: Of the loader.

    Raises:
        DataError: If the data process or the pipeline does not start, on all ranks.
    """

    def __init__(
        self,
        source: Union[PipelineSource, StreamSource, DatasetSource],
        schedule: Schedule,
        *,
        num_workers: int,
        replica: int,
        communicator: Communicator,
        counters: Counters,
        settings: DataSettings,
        search_path: Sequence[str],
        name: str,
    ) -> None:
        self._name = name
        self._stream = -1
        self._processes: List[WorkerProcess] = []
        self._readers: List[RingReader] = []
        self._owned: List[Closable] = []
        # Also when it is never closed: the first rank must not exit before its child.
        self._leave = weakref.finalize(self, _close_all, self._owned)
        me = {"host": _host(), "replica": replica, "cpus": list(allowed_cpus())}
        everybody = communicator.all_gather_value(me)
        mine = [k for k, entry in enumerate(everybody) if entry["host"] == _host()]
        self.is_spread = len(mine) < len(everybody)
        config = {
            "name": name,
            **_source_table(source),
            "is_spread": self.is_spread,
            "search_path": list(search_path),
            "more_path": list(sys.path) if isinstance(source, DatasetSource) else [],
            "replicas": [everybody[k]["replica"] for k in mine],
            "token": secrets.token_hex(16),
            "schedule": _schedule_table(schedule),
        }
        with communicator.phase("data start"):
            started: Dict[str, Any] = {}
            if communicator.rank == mine[0]:
                # A rank may be bound to a part of the host; what feeds all of them is not.
                with running_on(sorted({cpu for k in mine for cpu in everybody[k]["cpus"]})):
                    started = self._start(config, source, num_workers, settings.python)
            answers = communicator.all_gather_value(started)
            error = self._join(answers[mine[0]], replica, counters)
            errors = communicator.all_gather_value(error)
        failures = [text for text in errors if text is not None]
        if failures:
            self.close()
            raise DataError(failures[0])

    def begin(self, epoch: int, start_update: int) -> None:
        """Ask for a pass; what is left of the one before will be thrown away."""
        self._stream += 1
        for reader in self._connected:
            reader.send(Message(Kind.OPEN, stream=self._stream, ordinal=epoch, rows=start_update))

    def read(self, portion: Portion) -> Delivery:
        """Wait for the rows of ``portion``, leaving out what comes before it.

        Raises:
            DataError: If the pipeline failed, or the data process is gone or out of step.
        """
        readers = self._connected
        reader = readers[portion.ordinal % len(readers)]
        while True:
            batch = reader.next_batch()
            if batch.stream == self._stream and batch.ordinal == portion.ordinal:
                return reader.take(batch)
            if batch.stream > self._stream or (
                batch.stream == self._stream and batch.ordinal > portion.ordinal
            ):
                raise DataError(
                    f"{self._name}: micro-batch {batch.ordinal} of pass {batch.stream} came, "
                    f"{portion.ordinal} of {self._stream} was due; the data process is out of step"
                )
            reader.drop(batch)

    def extent(self, samples: int) -> Tuple[int, bool]:
        """Wait until it is known whether the pass has ``samples`` samples; for streams.

        Returns:
            How many it has for certain, and whether there are no more.

        Raises:
            DataError: If the pipeline failed, or the data process is gone.
        """
        return self._connected[0].extent(self._stream, samples)

    def close(self) -> None:
        """Leave the data process; it ends when all ranks of the host have left."""
        self._leave()

    @property
    def _connected(self) -> List[RingReader]:
        if not self._readers or not self._leave.alive:
            raise DataError(f"{self._name}: a micro-batch was asked for after it was closed")
        return self._readers

    def _start(
        self, config: Dict[str, Any], source: object, num_workers: int, python: str
    ) -> Dict[str, Any]:
        """Start all data processes; returns how to reach them, or what went wrong."""
        addresses = []
        try:
            packed = _packed(source)
            for which in range(num_workers):
                address = f"\0unified-ipu-data-{secrets.token_hex(8)}"
                mine = {**config, "share": [which, num_workers]}
                process = WorkerProcess(address, mine, packed=packed, python=python)
                self._processes.append(process)
                self._owned.insert(0, process)
                addresses.append(address)
        except OSError as error:
            return {"error": f"{self._name}: the data process could not be started: {error}"}
        except DataError as error:
            return {"error": f"{self._name}: {error}"}
        return {"addresses": addresses, "token": config["token"]}

    def _join(self, answer: Dict[str, Any], replica: int, counters: Counters) -> Optional[str]:
        """Connect to all and wait for the pipelines; returns what went wrong."""
        if "error" in answer:
            return str(answer["error"])
        hello = Message(Kind.HELLO, slot=replica, payload=answer["token"])
        for which, address in enumerate(answer["addresses"]):
            process = self._processes[which] if self._processes else None
            explain_end = partial(_explain_end, self._name, process)
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                connection.connect(address)
            except OSError as error:
                connection.close()
                return f"{explain_end()} ({error})"
            channel = Channel(connection)
            reader = RingReader(
                channel,
                name=self._name,
                on_copy=partial(Copies(counters).add, CopyReason.KEPT),
                explain_end=explain_end,
            )
            self._readers.append(reader)
            self._owned.append(reader)
            try:
                channel.check_peer()
            except DataError as error:
                return str(error)
            reader.send(hello)
        try:
            for reader in self._readers:
                reader.next_batch()
        except DataError as error:
            return str(error)
        return None


def _close_all(owned: List[Closable]) -> None:
    while owned:
        owned.pop().close()


def _explain_end(name: str, process: Optional[WorkerProcess]) -> str:
    status = None if process is None else process.describe_end()
    how = "it was started by another rank of this host" if status is None else status
    return f"{name}: the data process ended unexpectedly: {how}"


def _host() -> str:
    """What ranks that can share memory and local sockets have in common."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot} {os.readlink('/proc/self/ns/net')}"


def _packed(source: object) -> bytes:
    """What a data process unpickles: a live dataset, and what collates it."""
    if not isinstance(source, DatasetSource):
        return b""
    is_named = isinstance(source.samples, FunctionDataset)
    return pack((None if is_named else source.samples, source.collate))


def _source_table(source: Union[PipelineSource, StreamSource, DatasetSource]) -> Dict[str, Any]:
    if isinstance(source, DatasetSource):
        samples = source.samples
        named = samples.function if isinstance(samples, FunctionDataset) else ""
        return {"kind": "dataset", "function": named}
    if isinstance(source, StreamSource):
        return {"kind": "stream", "function": source.function}
    return {
        "kind": source.kind,
        "function": source.function,
        "size": source.size,
        "batched": source.batched,
    }


def _schedule_table(schedule: Schedule) -> Dict[str, Any]:
    batch = schedule.batch
    return {
        "batch": {
            "global_batch_size": batch.global_batch_size,
            "micro_batch_size": batch.micro_batch_size,
            "num_replicas": batch.num_replicas,
            "updates_per_call": batch.updates_per_call,
            "remainder": batch.remainder,
        },
        "size": schedule.size,
        "seed": str(schedule.seed),
        "shuffle": schedule.shuffle,
        "train": schedule.train,
        "micro_batch_size": schedule.micro_batch_size,
        "replicas_per_process": schedule.replicas_per_process,
    }
