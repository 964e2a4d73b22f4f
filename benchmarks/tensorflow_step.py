"""How long one update of a Keras model takes, against MultiWorkerMirroredStrategy.

Both sides have the same batch, model and optimizer (SGD with momentum of Keras), run in the same
two processes on the same cores, one thread each, and take turns. The peer is the custom training
loop of TensorFlow's guide: one ``tf.function`` around ``strategy.run``, gradients summed over the
workers by the optimizer; it reads the loss, as ours does. Numbers are medians over rounds, in
microseconds an update: wall time of rank 0, and CPU time summed over ranks. On shared cores trust
the CPU rows. The rows "with ui.optim" let ours use its own kernels. The rows "alone" are the
control: the same loop on every rank at once, without any communication, which no communication can
be faster than.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

import numpy as np
from rows import Row, show, write

Measured = Dict[str, List[Tuple[float, float]]]

REPLICAS = 2
WIDTHS = (784, 1024, 1024, 1024, 10)
BAR = 1.35
SILENT = {"TF_CPP_MIN_LOG_LEVEL": "2"}


@dataclass(frozen=True)
class Case:
    """A batch: rows a replica, updates a round, the bar."""

    name: str
    rows: int
    updates: int
    bar: Optional[float]


CASES = (
    Case("MLP 1024, micro 256", 256, 2, BAR),
    Case("MLP 1024, micro 32", 32, 5, BAR),
)


def build_net() -> Any:
    """The network, with the same start on every rank."""
    import keras

    keras.utils.set_random_seed(0)
    layers: List[Any] = [keras.Input((WIDTHS[0],))]
    layers += [keras.layers.Dense(width, activation="relu") for width in WIDTHS[1:-1]]
    return keras.Sequential([*layers, keras.layers.Dense(WIDTHS[-1])])


def build_optimizer() -> Any:
    import keras

    return keras.optimizers.SGD(0.01, momentum=0.9)


def loop(strategy: Any, x: Any, y: Any) -> Callable[[], float]:
    """One update of the guide's custom loop under a strategy."""
    import tensorflow as tf

    with strategy.scope():
        net, optimizer = build_net(), build_optimizer()
        optimizer.build(net.trainable_variables)

    def replica(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            values = tf.nn.sparse_softmax_cross_entropy_with_logits(y, net(x, training=True))
            loss = tf.reduce_sum(values) / (len(y) * strategy.num_replicas_in_sync)
        gradients = tape.gradient(loss, net.trainable_variables)
        optimizer.apply_gradients(zip(gradients, net.trainable_variables))
        return loss

    def update(x: Any, y: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica, args=(x, y)), axis=None)

    traced: Any = tf.function(update)
    return lambda: float(traced(x, y).numpy())


def contenders(case: Case, session: Any, strategy: Any) -> Dict[str, Callable[[], Any]]:
    """One update of each, on a model of its own."""
    import keras
    import tensorflow as tf

    import unified_ipu as ui

    rng = np.random.default_rng(session.rank)
    x = tf.constant(rng.standard_normal((case.rows, WIDTHS[0])), tf.float32)
    y = tf.constant(rng.integers(0, WIDTHS[-1], case.rows), tf.int64)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    program = session.compile(build_net(), loss=loss, optimizer=build_optimizer())
    own = session.compile(build_net(), loss=loss, optimizer=ui.optim.SGD(lr=0.01, momentum=0.9))
    return {
        "peer": loop(strategy, x, y),
        "alone": loop(tf.distribute.get_strategy(), x, y),
        "step": lambda: float(program.step((x, y)).loss),
        "step with ui.optim": lambda: float(own.step((x, y)).loss),
    }


def alternate(case: Case, session: Any, strategy: Any, rounds: int) -> Measured:
    """Wall and CPU microseconds of one update, by round, of each contender."""
    calls = contenders(case, session, strategy)
    measured: Measured = {name: [] for name in calls}
    for round_index in range(rounds + 1):
        for name, call in calls.items():
            call()
            session.communicator().barrier()
            wall, cpu = time.perf_counter(), time.process_time()
            for _ in range(case.updates):
                call()
            spent = time.perf_counter() - wall, time.process_time() - cpu
            if round_index:  # the first one warms up
                scale = 1e6 / case.updates
                measured[name].append((spent[0] * scale, spent[1] * scale))
    return measured


def run_rank(arguments: argparse.Namespace) -> None:
    rank = arguments.rank
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    import tensorflow as tf

    import unified_ipu as ui
    from unified_ipu.world import World

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    # Before anything else: it starts the server of the collectives. Reads TF_CONFIG.
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    case = CASES[arguments.case]
    world = World(
        rank=rank,
        local_rank=rank,
        world_size=REPLICAS,
        local_world_size=REPLICAS,
        job=arguments.job,
        launcher="benchmark",
    )
    plan = ui.Plan().replace(
        batch={"global_batch_size": case.rows * REPLICAS, "micro_batch_size": case.rows},
        mesh={"data": REPLICAS},
    )
    with ui.Session(plan, world=world, argv=["benchmark"]) as session:
        measured = alternate(case, session, strategy, arguments.rounds)
        gathered = session.communicator().all_gather_value(measured)
    if rank == 0:
        sys.stdout.write(json.dumps(gathered))
        sys.stdout.flush()


def free_ports() -> List[int]:
    """A free port for each worker."""
    sockets = [socket.socket() for _ in range(REPLICAS)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def run_world(index: int, rounds: int) -> List[Measured]:
    """Start the ranks of a case and return what each measured.

    Raises:
        SystemExit: If one of them fails.
    """
    command = [sys.executable, __file__, "--case", str(index), "--rounds", str(rounds)]
    command += ["--job", uuid.uuid4().hex]
    workers = [f"127.0.0.1:{port}" for port in free_ports()]
    processes = []
    for rank in range(REPLICAS):
        task = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
        environment = {**os.environ, **SILENT, "TF_CONFIG": json.dumps(task)}
        processes.append(
            subprocess.Popen(
                [*command, "--rank", str(rank)], stdout=subprocess.PIPE, text=True, env=environment
            )
        )
    outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit("a rank failed")
    world: List[Measured] = json.loads(outputs[0])
    return world


def rows_of(case: Case, world: List[Measured]) -> List[Row]:
    """Wall of rank 0 and CPU of all ranks, for each way of ours."""
    rounds = range(len(world[0]["peer"]))

    def series(name: str, clock: str) -> List[float]:
        if clock == "wall":
            return [pair[0] for pair in world[0][name]]
        return [sum(rank[name][index][1] for rank in world) for index in rounds]

    rows = []
    for name in ("step", "step with ui.optim", "alone"):
        bar = case.bar if name == "step" else None
        for clock in ("wall", "CPU"):
            ours, theirs = series(name, clock), series("peer", clock)
            words = f"{name}, {case.name}, {REPLICAS} replicas, {clock} us / MultiWorkerMirrored"
            rows.append(Row(words, statistics.median(ours), statistics.median(theirs), bar))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--long", action="store_true", help="four times the rounds")
    parser.add_argument("--only", type=int, nargs="*", default=range(len(CASES)), help="cases")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    for hidden in ("--rank", "--case"):
        parser.add_argument(hidden, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        run_rank(arguments)
        return
    rows: List[Row] = []
    for index in arguments.only:
        world = run_world(index, arguments.rounds * (4 if arguments.long else 1))
        for row in rows_of(CASES[index], world):
            show(row)
            rows.append(row)
    write(rows, arguments.json)


if __name__ == "__main__":
    main()
