"""`launch`: a function on all ranks, from Python."""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

from unified_ipu.errors import LaunchError, PlanError
from unified_ipu.launch import launch
from unified_ipu.plan import Plan

pytestmark = pytest.mark.timeout(60)

HERE = str(Path(__file__).parent)
TWO = ["mesh.data=2"]


@pytest.fixture
def work(monkeypatch):
    monkeypatch.syspath_prepend(HERE)
    yield importlib.import_module("work")
    del sys.modules["work"]


def program(text, *, timeout=50):
    """Run a program that may do to its process what a test session should not."""
    code = f"import sys\nsys.path.insert(0, {HERE!r})\n" + textwrap.dedent(text)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=timeout, check=False
    )
    return done.returncode, done.stdout, done.stderr


def test_rank_0_answers_from_a_process_of_its_own(work):
    rank, size, pid, args = launch(work.place, args=(1, "two"), settings=TWO)
    assert (rank, size, args) == (0, 2, [1, "two"])
    assert pid != os.getpid()


def test_arrays_come_back(work):
    found = launch(work.array, args=(200_000,), settings=["mesh.data=1"])
    np.testing.assert_array_equal(found, np.arange(200_000.0))


def test_a_static_method_is_found_by_name(work):
    assert launch(work.Steps.double, args=(21,), settings=["mesh.data=1"]) == 42


def test_a_plan_decides_how_many_ranks_and_is_handed_over(work, tmp_path):
    plan = Plan().replace(mesh={"data": 2}, seed=7)
    text, settings = launch(work.handed_over, plan, settings=["seed=8"])
    assert Plan.load(_written(tmp_path, text)) == plan
    assert settings == ("seed=8",)
    text, _ = launch(work.handed_over, _written(tmp_path, "[mesh]\ndata = 1\n"))
    assert text == "[mesh]\ndata = 1\n"


def _written(folder, text):
    path = folder / "plan.toml"
    path.write_text(text)
    return str(path)


def test_closures_and_lambdas_are_sent_by_value():
    pytest.importorskip("cloudpickle")
    base = 40
    assert launch(lambda more: base + more, args=(2,), settings=["mesh.data=1"]) == 42


def test_without_cloudpickle_a_closure_is_refused_with_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(
        LaunchError, match="put it into a module of its own, or install cloudpickle"
    ):
        launch(lambda: 1, settings=["mesh.data=1"])


def test_a_function_of_the_main_program_is_sent_by_value():
    pytest.importorskip("cloudpickle")
    status, out, err = program(
        """
        from unified_ipu.launch import launch
        def double(number):
            return 2 * number
        if __name__ == "__main__":
            print(launch(double, args=(21,), settings=["mesh.data=2"]))
        """
    )
    assert (status, out) == (0, "42\n"), err


def test_arguments_and_results_that_cannot_be_sent_are_refused(work):
    with pytest.raises(LaunchError, match="its arguments cannot be sent to another process"):
        launch(work.say, args=(open, (number for number in range(3))), settings=["mesh.data=1"])
    with pytest.raises(LaunchError, match="a generator, cannot be sent back"):
        launch(work.unpicklable, settings=["mesh.data=1"])


def test_a_wrong_plan_starts_nothing(work):
    with pytest.raises(PlanError, match="mesh"):
        launch(work.place, settings=["mesh.daat=2"])


def test_output_of_ranks_is_labelled_on_the_stdout_of_the_caller(work, capfd):
    launch(work.say, args=("hello",), settings=TWO)
    out = capfd.readouterr().out
    assert sorted(out.splitlines()) == ["[rank 1] hello", "hello"]


def test_output_goes_where_a_notebook_has_put_stdout(work, capsys):
    launch(work.say, args=("hello",), settings=TWO)
    assert sorted(capsys.readouterr().out.splitlines()) == ["[rank 1] hello", "hello"]


@pytest.mark.case("O-P3")
@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("raise", r"(?s)rank 1 of 3 failed: ValueError: bad sample 7.*Traceback.*in fail"),
        ("exit", "rank 1 of 3 exited with status 3"),
        ("kill", "rank 1 of 3 was ended by SIGKILL"),
    ],
)
def test_one_rank_fails_and_launch_raises_with_nothing_left(work, tmp_path, how, message):
    started = time.monotonic()
    with pytest.raises(LaunchError, match=message):
        launch(work.fail, args=(str(tmp_path), how), settings=["mesh.data=3"])
    assert time.monotonic() - started < 30
    pids = [int(path.name) for path in tmp_path.iterdir()]
    assert len(pids) == 3
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_an_interrupt_ends_the_ranks_first():
    status, out, err = program(
        """
        import os, pathlib, signal, tempfile, threading, time
        import work
        from unified_ipu.launch import launch
        folder = pathlib.Path(tempfile.mkdtemp())
        def interrupt():
            while len(list(folder.iterdir())) < 2:
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)
        threading.Thread(target=interrupt).start()
        try:
            launch(work.fail, args=(str(folder), "wait"), settings=["mesh.data=2"])
        except KeyboardInterrupt:
            print([path.name for path in folder.iterdir() if os.path.exists(f"/proc/{path.name}")])
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
        """
    )
    assert (status, out) == (0, "[]\n"), err


@pytest.mark.slow
@pytest.mark.case("O-P1")
def test_ranks_use_openmp_after_the_parent_has_whatever_start_method_is_set():
    pytest.importorskip("torch")  # whose matrix product starts OpenMP threads
    status, out, err = program(
        """
        import multiprocessing
        import work
        from unified_ipu.launch import launch
        if __name__ == "__main__":
            multiprocessing.set_start_method("fork")
            print(work.matmul(), launch(work.matmul, settings=["mesh.data=2"]))
        """
    )
    assert (status, out) == (0, "216000000.0 216000000.0\n"), err


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.case("O-P2")
def test_ranks_use_tensorflow_and_torch_after_the_parent_has_used_tensorflow():
    if importlib.util.find_spec("tensorflow") is None:
        pytest.skip("needs tensorflow")
    status, out, err = program(
        """
        import os
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
        import tensorflow as tf
        import work
        from unified_ipu.launch import launch
        if __name__ == "__main__":
            numbers = tf.data.Dataset.range(100).map(lambda x: x, num_parallel_calls=2).prefetch(2)
            print(sum(int(number) for number in numbers))
            print(launch(work.one_of_each, settings=["mesh.data=2"]))
        """,
        timeout=110,
    )
    assert (status, out) == (0, "4950\n5050\n"), err
