"""Whether it pays to reduce gradients while backward still runs, on the cores of one machine.

Two ranks train an MLP; each weight is a bucket of its own, whose sum is made in shared memory by
the reducer that ``Program.step`` uses, or by gloo. The ways differ in when that happens:

- ``after``: all of them after backward, as ``Program.step`` does it.
- ``hooks``: each in the hook that autograd calls when its gradient is complete.
- ``hooks, thread``: the hook hands it to a thread, which backward runs beside.
- ``after, handed over``: the control of it: by the thread, but after backward.
- ``alone`` and ``alone, handed over``: no sums; the update in the main thread, or in another one
  while the main thread sleeps. What they differ by is no overlap, only how the kernel shares cores.

The gloo ways start each sum without waiting for it, and wait before the optimizer. Numbers are
medians over rounds in microseconds an update, wall of rank 0 and CPU of both ranks.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

from torch_step import CASES, Case, build_net

RANKS = 2


class Worker:
    """A thread that does what it is handed, in order."""

    def __init__(self) -> None:
        self._jobs: Any = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def hand(self, job: Callable[[], Any]) -> None:
        """Have it done later."""
        self._jobs.put(job)

    def join(self) -> None:
        """Wait until all is done."""
        done = threading.Event()
        self._jobs.put(done.set)
        done.wait()

    def _run(self) -> None:
        while True:
            self._jobs.get()()


class Training:
    """A model, its optimizer and a bucket a parameter; each is summed as ``by`` says.

    Args:
        case: The model and its batch.
        communicator: Of all ranks.
        by: ``"main"``, ``"thread"``, ``"gloo"``, or ``""``: nothing is summed.
        in_hooks: Whether a bucket's sum begins when its gradient is complete, not after backward.
    """

    def __init__(self, case: Case, communicator: Any, by: str, *, in_hooks: bool = False) -> None:
        import torch

        self._net = build_net(case.widths)
        self._parameters = list(self._net.parameters())
        self._optimizer = torch.optim.SGD(self._parameters, lr=0.01, momentum=0.9)
        self._x = torch.randn(case.rows, case.widths[0])
        self._y = torch.randint(0, 10, (case.rows,))
        self._loss = torch.nn.CrossEntropyLoss()
        self._worker = Worker()
        self._by, self._in_hooks = by, in_hooks
        self._started: List[Any] = []
        self._reducers, self._views = [], []
        for index, parameter in enumerate(self._parameters):
            reducer = communicator.reducer(bucket_of(index, parameter), 1)
            self._reducers.append(reducer)
            flat = torch.from_numpy(reducer.gradients[0])[: parameter.numel()]
            self._views.append(flat.view(parameter.shape))
            if in_hooks:
                self._follow(parameter, index)

    def update(self) -> None:
        """Change the weights once."""
        for parameter in self._parameters:
            parameter.grad = None
        self._loss(self._net(self._x), self._y).backward()
        if self._by and not self._in_hooks:
            for index in reversed(range(len(self._parameters))):
                self._begin(index)
        self._wait()
        self._optimizer.step()

    def update_elsewhere(self) -> None:
        """The same in the other thread."""
        self._worker.hand(self.update)
        self._worker.join()

    def _follow(self, parameter: Any, index: int) -> None:
        parameter.register_post_accumulate_grad_hook(lambda _: self._begin(index))

    def _begin(self, index: int) -> None:
        import torch.distributed as dist

        view = self._views[index]
        view.copy_(self._parameters[index].grad)
        self._parameters[index].grad = view
        if self._by == "gloo":
            self._started.append(dist.all_reduce(view, async_op=True))
        elif self._by == "thread":
            self._worker.hand(lambda: self._sum_up(index))
        else:
            self._sum_up(index)

    def _sum_up(self, index: int) -> None:
        self._reducers[index].reduce(contributes=True, divide=_halve)

    def _wait(self) -> None:
        if self._by == "thread":
            self._worker.join()
        if self._by == "gloo":
            for work in self._started:
                work.wait()
            self._started.clear()
            for view in self._views:
                view.mul_(1.0 / RANKS)


def bucket_of(index: int, parameter: Any) -> Any:
    from unified_ipu.plan import TensorSpec, plan_buckets

    spec = TensorSpec(f"p{index}", tuple(parameter.shape), "float32", "parameter", True)
    return plan_buckets([spec], 1)


def _halve(_: Any) -> float:
    return 1.0 / RANKS


def ways_of(case: Case, communicator: Any) -> Dict[str, Callable[[], Any]]:
    """One update of each way, each on a model of its own."""
    return {
        "alone": Training(case, communicator, "").update,
        "alone, handed over": Training(case, communicator, "").update_elsewhere,
        "after": Training(case, communicator, "main").update,
        "after, handed over": Training(case, communicator, "thread").update,
        "hooks": Training(case, communicator, "main", in_hooks=True).update,
        "hooks, thread": Training(case, communicator, "thread", in_hooks=True).update,
        "gloo, after": Training(case, communicator, "gloo").update,
        "gloo, hooks": Training(case, communicator, "gloo", in_hooks=True).update,
    }


def measure(case: Case, session: Any, rounds: int) -> Dict[str, List[Tuple[float, float]]]:
    """Wall and CPU microseconds of one update, by round, of each way."""
    ways = ways_of(case, session.communicator())
    measured: Dict[str, List[Tuple[float, float]]] = {name: [] for name in ways}
    for round_index in range(rounds + 1):
        for name, update in ways.items():
            update()
            session.communicator().barrier()
            wall, cpu = time.perf_counter(), time.process_time()
            for _ in range(case.updates):
                update()
            spent = time.perf_counter() - wall, time.process_time() - cpu
            if round_index:  # the first one warms up
                scale = 1e6 / case.updates
                measured[name].append((spent[0] * scale, spent[1] * scale))
    return measured


def run_rank(arguments: argparse.Namespace) -> None:
    import torch

    import unified_ipu as ui
    from unified_ipu.world import World

    case, rank = CASES[arguments.case], arguments.rank
    if arguments.pin:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.set_num_threads(1)
    torch.manual_seed(0)
    world = World(
        rank=rank,
        local_rank=rank,
        world_size=RANKS,
        local_world_size=RANKS,
        job=arguments.job,
        launcher="benchmark",
    )
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{arguments.store}", rank=rank, world_size=RANKS
    )
    plan = ui.Plan().replace(mesh={"data": RANKS})
    with ui.Session(plan, world=world, argv=["benchmark"]) as session:
        measured = measure(case, session, arguments.rounds)
        gathered = session.communicator().all_gather_value(measured)
    torch.distributed.destroy_process_group()
    if rank == 0:
        sys.stdout.write(json.dumps(gathered))


def run_world(index: int, rounds: int, *, pin: bool) -> List[Dict[str, List[List[float]]]]:
    """Start the ranks of a case and return what each measured.

    Raises:
        SystemExit: If one of them fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--case", str(index), "--rounds", str(rounds)]
        command += ["--store", str(Path(folder) / "store"), "--job", uuid.uuid4().hex]
        command += ["--pin"] * pin
        processes = [
            subprocess.Popen([*command, "--rank", str(rank)], stdout=subprocess.PIPE, text=True)
            for rank in range(RANKS)
        ]
        outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit("a rank failed")
    world: List[Dict[str, List[List[float]]]] = json.loads(outputs[0])
    return world


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--unpinned", action="store_true", help="without rank r on core r")
    parser.add_argument("--only", type=int, nargs="*", default=(1, 2, 3), help="cases")
    for hidden in ("--rank", "--case"):
        parser.add_argument(hidden, type=int, help=argparse.SUPPRESS)
    for hidden in ("--store", "--job"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--pin", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        run_rank(arguments)
        return
    for index in arguments.only:
        world = run_world(index, arguments.rounds, pin=not arguments.unpinned)
        print(f"{CASES[index].name}, {RANKS} replicas: microseconds an update, wall and CPU")
        for name in world[0]:
            wall = statistics.median(pair[0] for pair in world[0][name])
            rounds = zip(*(rank[name] for rank in world))
            cpu = statistics.median(sum(pair[1] for pair in pairs) for pairs in rounds)
            print(f"  {name:20} {wall:9.0f} {cpu:9.0f}", flush=True)


if __name__ == "__main__":
    main()
