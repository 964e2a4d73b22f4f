"""The data process: ``python -m unified_ipu.data.worker FD``, started by the first rank of a host.

It imports the user's pipeline module and the source's framework, and nothing of the model's. It
ends when its ranks are gone, whatever the pipeline is doing at that time.
"""

from __future__ import annotations

import importlib
import os
import select
import signal
import socket
import sys
import threading
import time
from functools import partial
from typing import Any, Callable, Dict, List, Mapping, Sequence

from unified_ipu.adapter import registered
from unified_ipu.data.dealing import Pass, Stream
from unified_ipu.data.fetching import FetchPass, check_size
from unified_ipu.data.frameworks import load_source, take_process
from unified_ipu.data.messages import Channel, Kind, Message
from unified_ipu.data.producer import Producer
from unified_ipu.data.ring_writer import RingWriter
from unified_ipu.data.sample_randomness import SeededFetching
from unified_ipu.data.schedule import Schedule
from unified_ipu.data.server import Server, failure_text
from unified_ipu.data.stream_dealing import StreamPass
from unified_ipu.data.stream_reader import StreamReader
from unified_ipu.data.worker_start import read_start, unpack
from unified_ipu.errors import DataError
from unified_ipu.plan import BatchPlan
from unified_ipu.world import usable_cores

GROUP = "unified_ipu.sources"

_GRACE_SECONDS = 1.0


def main(argv: List[str]) -> int:
    """Serve the ranks that connect to the listening socket ``argv[0]``.

    Args:
        argv: The descriptor of the socket; the rest comes as a line of JSON on standard input.

    Returns:
        The exit status.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ^C is the ranks' business; they close, we end
    lifeline = os.dup(0)
    config, packed = read_start(lifeline)
    quiet = os.open(os.devnull, os.O_RDONLY)
    os.dup2(quiet, 0)
    os.close(quiet)
    listener = socket.socket(fileno=int(argv[0]))
    writers = _accept(listener, lifeline, config)
    listener.close()
    _watch([writer.channel.fileno() for writer in writers.values()])
    kind = "dataset" if config["kind"] == "dataset" else "pipeline"
    what = f"{config['name']}: the {kind} {config['function']!r}".replace(" ''", "")
    try:
        sys.path[:0] = config["search_path"]
        sys.path.extend(folder for folder in config["more_path"] if folder not in sys.path)
        open_pass = build_opener(config, sorted(writers), packed)
    except Exception as error:  # noqa: BLE001 - the user's code may raise anything
        for writer in writers.values():
            writer.tell(Message(Kind.ERROR, payload=failure_text(what, error)))
        for writer in writers.values():
            while writer.channel.receive()[0] is not None:
                pass  # what a closing socket has not delivered yet would be lost
        return 1
    for writer in writers.values():
        writer.tell(Message(Kind.READY))
    Server(open_pass, writers, what, train=config["schedule"]["train"]).run()
    return 0


def build_opener(
    config: Mapping[str, Any], ranks: Sequence[int], packed: bytes
) -> Callable[[int, int, int], Pass]:
    """Import what makes the samples.

    Args:
        config: ``kind``, ``function`` and ``schedule`` say what and how.
        ranks: Those of this host, each by its first replica.
        packed: A live dataset and its collate function.

    Returns:
        Starts the pass of a number, an epoch and a first update.

    Raises:
        DataError: If there is no such module, function or source.
    """
    schedule = schedule_of(config)
    replicas = tuple(replica for first in ranks for replica in schedule.of_process(first))
    if config["kind"] == "stream":
        function = load_function(config["function"])
        take_process()
        reader = StreamReader(function, seed=schedule.seed, is_strict=config["is_spread"])
        return partial(StreamPass, schedule=schedule, replicas=replicas, reader=reader)
    deal: Callable[..., Pass]
    if config["kind"] == "dataset":
        deal = partial(FetchPass, schedule=schedule, replicas=replicas, share=config["share"])
        samples, collate = unpack(packed)
        if config["function"]:
            samples = load_function(config["function"])()
            check_size(samples, schedule.size)
        return partial(deal, samples=SeededFetching(samples, collate, seed=schedule.seed))
    producer = build_producer(config)
    deal = partial(Stream, schedule=schedule, replicas=replicas, share=config["share"])
    return partial(deal, producer=producer)


def build_producer(config: Mapping[str, Any]) -> Producer:
    """Import the pipeline and the source that runs it.

    Args:
        config: ``kind``, ``function``, ``size``, ``batched``, ``share``.

    Returns:
        The source, ready to be opened.

    Raises:
        DataError: If there is no such module, function or source.
    """
    function = load_function(config["function"])
    kind = config["kind"]
    points = registered(GROUP)
    if kind in points:
        take_process(kind)
        create = load_source(points[kind])
    elif ":" in kind:
        create = load_function(kind)
    else:
        known = ", ".join(sorted(points)) or "none"
        raise DataError(
            f"no source {kind!r} is registered in {sys.executable}; registered: {known}; install "
            "the package that brings it there"
        )
    producer: Producer = create(
        function,
        size=config["size"],
        batched=config["batched"],
        cores=max(1, usable_cores() // config["share"][1]),
    )
    return producer


def load_function(name: str) -> Callable[..., Any]:
    """Import ``"module:function"``.

    Raises:
        DataError: If the module has no such function.
    """
    module_name, _, function_name = name.partition(":")
    module = importlib.import_module(module_name)
    function = getattr(module, function_name, None)
    if not callable(function):
        public = sorted(key for key, value in vars(module).items() if callable(value))
        there = ", ".join(key for key in public if not key.startswith("_")) or "none"
        raise DataError(
            f"{module.__file__} has no function {function_name!r}; functions there: {there}"
        )
    found: Callable[..., Any] = function
    return found


def schedule_of(config: Mapping[str, Any]) -> Schedule:
    """The schedule that the ranks use, from its JSON values."""
    table = dict(config["schedule"])
    table["seed"] = int(table["seed"])
    return Schedule(BatchPlan(**table.pop("batch")), **table)


def _accept(
    listener: socket.socket, lifeline: int, config: Mapping[str, Any]
) -> Dict[int, RingWriter]:
    """Wait for all ranks of this host; ends the process if the first of them dies before."""
    writers: Dict[int, RingWriter] = {}
    waiting = select.poll()
    waiting.register(listener.fileno(), select.POLLIN)
    waiting.register(lifeline, 0)
    while len(writers) < len(config["replicas"]):
        for descriptor, _ in waiting.poll():
            if descriptor == lifeline:
                sys.exit(0)
            channel = Channel(listener.accept()[0])
            channel.check_peer()
            hello, _ = channel.receive()
            if hello is None or hello.payload != config["token"]:
                channel.close()
                continue
            writers[hello.slot] = RingWriter(channel)
    return writers


def _watch(descriptors: List[int]) -> None:
    """End this process when all ranks are gone, even in the middle of the user's code."""

    def run() -> None:
        poll = select.poll()
        for descriptor in copies:
            poll.register(descriptor, 0)
        left = len(copies)
        while left:
            for descriptor, _ in poll.poll():
                poll.unregister(descriptor)
                left -= 1
        time.sleep(_GRACE_SECONDS)
        os._exit(0)

    copies = [os.dup(descriptor) for descriptor in descriptors]
    threading.Thread(target=run, name="unified-ipu-watch", daemon=True).start()


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # Frameworks may hang or abort while they are taken down; nothing of theirs is to be saved.
    os._exit(status)
