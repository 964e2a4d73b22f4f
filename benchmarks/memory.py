"""How much memory a rank needs in training: ``Program.step`` against DDP on gloo, two replicas.

The same model, batch and optimizer (SGD with momentum); each side in processes of its own. A number
is what the resident memory of a rank grows by from before its model is made to the peak within an
update, in MiB, the mean over the ranks. Memory that ranks share counts in parts, so that the
numbers of all ranks add up to what the host needs. A small model is trained before, so that what
libraries load late is no part of it. The rows of "sets" say how many times the weights were needed
beside weights and momentum: gradients, buckets, activations and what the allocator keeps.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path
from typing import Any, Callable, List, Sequence

from rows import Measure, Row, show, write
from torch_step import build_net

CASES = {
    "MLP 1024, 2.9 M parameters": (784, 1024, 1024, 1024, 10),
    "MLP 3072, 25 M parameters": (1024, 3072, 3072, 3072, 1024, 10),
}
SIDES = ("ours", "DDP", "DDP, gradient_as_bucket_view")
RANKS, ROWS, UPDATES = 2, 32, 3
MIB = 1 << 20


def status(field: str) -> int:
    """Bytes of a field of ``/proc/self/status``.

    Raises:
        KeyError: If the kernel does not tell it.
    """
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    raise KeyError(field)


def shared_part() -> int:
    """This process's part of the shared memory it has touched, in bytes.

    Source: proc(5), ``smaps_rollup``: Pss divides each page by the processes that map it.
    """
    for line in Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines():
        if line.startswith("Pss_Shmem:"):
            return int(line.split()[1]) * 1024
    return 0


def our_update(net: Any, loss: Any, optimizer: Any, batch: Any, session: Any) -> Callable[[], Any]:
    program = session.compile(net, loss=loss, optimizer=optimizer)
    return lambda: program.step(batch)


def their_update(
    net: Any, loss: Any, optimizer: Any, batch: Any, **options: Any
) -> Callable[[], Any]:
    import torch

    model = torch.nn.parallel.DistributedDataParallel(net, **options)

    def update() -> None:
        optimizer.zero_grad()
        loss(model(batch[0]), batch[1]).backward()
        optimizer.step()

    return update


def make_update(side: str, widths: Sequence[int], session: Any) -> Callable[[], Any]:
    """One update of a new model."""
    import torch

    net = build_net(tuple(widths))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    batch = torch.randn(ROWS, widths[0]), torch.randint(0, widths[-1], (ROWS,))
    loss = torch.nn.CrossEntropyLoss()
    if side == "ours":
        return our_update(net, loss, optimizer, batch, session)
    is_view = "view" in side
    return their_update(net, loss, optimizer, batch, gradient_as_bucket_view=is_view)


def measure(side: str, widths: Sequence[int], session: Any) -> int:
    """Bytes by which this rank grew."""
    small = make_update(side, (16, 8, 10), session)
    for _ in range(UPDATES):
        small()
    before = status("VmRSS") - status("RssShmem") + shared_part()
    update = make_update(side, widths, session)
    for _ in range(UPDATES):
        update()
    # Source: proc(5), clear_refs: 5 makes the peak what is resident now.
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    for _ in range(UPDATES):
        update()
    session.communicator().barrier()
    after = status("VmHWM") - status("RssShmem") + shared_part()
    session.communicator().barrier()
    return after - before


def run_rank(arguments: argparse.Namespace) -> None:
    import torch

    import unified_ipu as ui
    from unified_ipu.world import World

    torch.set_num_threads(1)
    world = World(
        rank=arguments.rank,
        local_rank=arguments.rank,
        world_size=RANKS,
        local_world_size=RANKS,
        job=arguments.job,
        launcher="benchmark",
    )
    plan = ui.Plan().replace(
        batch={"global_batch_size": ROWS * RANKS, "micro_batch_size": ROWS}, mesh={"data": RANKS}
    )
    if arguments.side != "ours":
        init_method = f"file://{arguments.store}"
        torch.distributed.init_process_group(
            "gloo", init_method=init_method, rank=arguments.rank, world_size=RANKS
        )
    with ui.Session(plan, world=world, argv=["benchmark"]) as session:
        measured = measure(arguments.side, CASES[arguments.case], session)
        gathered = session.communicator().all_gather_value(measured)
    if arguments.side != "ours":
        torch.distributed.destroy_process_group()
    if arguments.rank == 0:
        sys.stdout.write(json.dumps(gathered))


def run_world(case: str, side: str) -> List[int]:
    """Start the ranks of one side and return by how many bytes each grew.

    Raises:
        SystemExit: If one of them fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--case", case, "--side", side]
        command += ["--store", str(Path(folder) / "store"), "--job", uuid.uuid4().hex]
        processes = [
            subprocess.Popen(
                [*command, "--rank", str(rank)],
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
            for rank in range(RANKS)
        ]
        outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit("a rank failed")
    world: List[int] = json.loads(outputs[0])
    return world


def rows_of(case: str) -> List[Row]:
    """Ours against each way of DDP, in MiB and in sets of gradients."""
    widths = CASES[case]
    weights = 4 * sum((1 + a) * b for a, b in zip(widths, widths[1:]))  # float32, with biases
    grown = {side: sum(run_world(case, side)) / RANKS for side in SIDES}
    sets = {side: size / weights - 2.0 for side, size in grown.items()}
    rows = []
    for peer in SIDES[1:]:
        bar = 1.0 if peer == "DDP" else None
        words = f"{case}, 2 replicas, a rank / {peer}"
        rows.append(Row(f"peak memory, MiB, {words}", grown["ours"] / MIB, grown[peer] / MIB, bar))
        words = f"sets, {words}"
        rows.append(Row(words, sets["ours"], sets[peer], None, Measure.DIFFERENCE))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    for hidden in ("--case", "--side", "--store", "--job"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        run_rank(arguments)
        return
    rows: List[Row] = []
    for case in CASES:
        for row in rows_of(case):
            show(row)
            rows.append(row)
    write(rows, arguments.json)


if __name__ == "__main__":
    main()
