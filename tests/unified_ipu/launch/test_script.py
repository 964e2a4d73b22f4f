"""A script on all ranks: arguments, environment, output and exit status."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from unified_ipu.errors import ConfigError
from unified_ipu.launch import launch_script

pytestmark = pytest.mark.timeout(60)

SHOW = """
import json, os, sys
names = [n for n in os.environ if n.startswith(("UNIFIED_IPU", "OMP", "MKL", "OPENBLAS"))]
print(json.dumps({
    "argv": sys.argv, "path": sys.path[0], "name": __name__, "file": __file__,
    "environ": {n: os.environ[n] for n in names},
}))
"""


def shown(out):
    """What each rank has shown, by rank."""
    lines = [line.rpartition("] {")[2] for line in out.splitlines()]
    found = [json.loads(line if line.startswith("{") else "{" + line) for line in lines]
    return sorted(found, key=lambda one: one["environ"]["UNIFIED_IPU_RANK"])


def told(err):
    """Lines of the ranks, without the launcher's own."""
    return sorted(line for line in err.splitlines() if not line.startswith("unified-ipu: "))


def handed_over(found):
    handover = json.loads(found[-1]["environ"]["UNIFIED_IPU_HANDOVER"])
    return handover["plan"], handover["settings"]


def test_everything_after_the_script_belongs_to_the_script(runs):
    words = ["--set", "x", "--plan", "--", "-h", "--version", "", "a b", "--", "run"]
    status, out, _ = runs.run(runs.script(SHOW), *words, ranks=2)
    assert status == 0
    assert [one["argv"][1:] for one in shown(out)] == [words, words]


def test_a_script_runs_as_under_python(runs):
    (runs.folder / "sub").mkdir()
    (runs.folder / "sub" / "sibling.py").write_text("value = 5\n")
    # The working directory is not on the path of a script, so this shadows nothing.
    (runs.folder / "json.py").write_text("raise RuntimeError('shadowed')\n")
    runs.script("import sibling\nassert sibling.value == 5\n" + SHOW, "sub/train.py")
    status, out, err = runs.run("sub/train.py", ranks=1)
    assert (status, err) == (0, "")
    one = shown(out)[0]
    assert one["name"] == "__main__"
    assert one["argv"] == ["sub/train.py"]
    assert one["path"] == str(runs.folder / "sub")


def test_ranks_know_their_place_and_share_a_job(runs):
    _, out, _ = runs.run(runs.script(SHOW), ranks=3)
    found = [one["environ"] for one in shown(out)]
    assert [one["UNIFIED_IPU_RANK"] for one in found] == ["0", "1", "2"]
    assert [one["UNIFIED_IPU_LOCAL_RANK"] for one in found] == ["0", "1", "2"]
    assert {one["UNIFIED_IPU_WORLD_SIZE"] for one in found} == {"3"}
    assert {one["UNIFIED_IPU_LOCAL_WORLD_SIZE"] for one in found} == {"3"}
    assert len({one["UNIFIED_IPU_JOB"] for one in found}) == 1


@pytest.mark.case("O-P5")
def test_two_jobs_at_once_with_a_leftover_port_sum_their_own_values(runs):
    script = runs.script(
        "import os, sys\nimport numpy as np\n"
        "from unified_ipu.comms import connect\nfrom unified_ipu.world import read_world\n"
        "world = read_world(os.environ)\n"
        "ranks = connect(rank=world.rank, size=world.world_size, job=world.job)\n"
        "total = ranks.all_reduce(np.array([float(sys.argv[1])]))\n"
        "print(total[0])\nranks.close()\n"
    )
    environ = {"MASTER_PORT": "29500", "MASTER_ADDR": "localhost"}
    jobs = [runs.start(script, str(job + 1), ranks=2, environ=environ) for job in range(2)]
    for job, process in enumerate(jobs):
        out, err = process.communicate(timeout=50)
        total = 2.0 * (job + 1)
        assert sorted(out.splitlines()) == sorted([f"[rank 1] {total}", f"{total}"]), err


def test_threads_are_shared_out_and_that_is_said_once(runs):
    _, out, err = runs.run(runs.script(SHOW), ranks=4)
    assert {one["environ"]["OMP_NUM_THREADS"] for one in shown(out)} == {"1"}
    assert err.count("1 thread each") == 1


def test_thread_settings_of_the_user_stay(runs):
    _, out, err = runs.run(runs.script(SHOW), ranks=2, environ={"OMP_NUM_THREADS": "7"})
    found = [one["environ"] for one in shown(out)]
    assert [one["OMP_NUM_THREADS"] for one in found] == ["7", "7"]
    assert all("MKL_NUM_THREADS" not in one for one in found)
    assert err.count("but where the environment says OMP_NUM_THREADS=7") == 1


def test_ranks_are_bound_to_cores_of_their_own_before_they_import_anything(runs):
    script = runs.script(
        "import os, sys\nprint(sorted(os.sched_getaffinity(0)), os.environ['OMP_NUM_THREADS'])\n"
    )
    cores = sorted(os.sched_getaffinity(0))
    _, out, err = runs.run(script, ranks=len(cores), options=["--bind", "core"])
    said = [line.replace("[rank ", "").rpartition("[")[2] for line in out.splitlines()]
    assert sorted(said) == sorted(f"{core}] 1" for core in cores)
    assert f"rank 0 on {cores[0]}" in err


def test_plan_option_goes_over_the_plan_beside_the_script_and_set_over_both(runs):
    (runs.folder / "plan.toml").write_text("[mesh]\ndata = 3\n")
    (runs.folder / "other.toml").write_text("[mesh]\ndata = 2\n")
    script = runs.script(SHOW)
    found = shown(runs.run(script)[1])
    assert len(found) == 3
    assert handed_over(found) == (None, [])
    found = shown(runs.run(script, options=["--plan", "other.toml"])[1])
    assert len(found) == 2
    assert handed_over(found) == (str(runs.folder / "other.toml"), [])
    options = ["--plan", "other.toml", "--set", "mesh.data=1", "--set", "seed=5"]
    found = shown(runs.run(script, options=options)[1])
    assert len(found) == 1
    assert handed_over(found) == (str(runs.folder / "other.toml"), ["mesh.data=1", "seed=5"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--set", "mesh.daat=2"], "mesh.daat"),
        (["--set", "mesh.data=none"], "mesh.data"),
        (["--plan", "absent.toml"], "absent.toml"),
        (["--set", "comms.compression=topk"], "comms.compression"),
    ],
)
def test_a_wrong_plan_is_one_message_before_anything_starts(runs, options, message):
    script = runs.script("open('started', 'w')")
    status, out, err = runs.run(script, options=options)
    assert (status, out) == (2, "")
    assert err.startswith("unified-ipu: ")
    assert message in err
    assert "Traceback" not in err
    assert not (runs.folder / "started").exists()


def test_an_absent_script_is_one_message(runs):
    status, _, err = runs.run("absent.py")
    assert status == 2
    assert err == "unified-ipu: absent.py: no such script; give the path of a Python file\n"
    with pytest.raises(ConfigError, match="no such script"):
        launch_script("absent.py")


@pytest.mark.parametrize(
    ("statement", "status", "said"),
    [
        ("pass", 0, ""),
        ("sys.exit(5)", 5, ""),
        ("sys.exit('no data')", 1, "no data\n"),
        ("raise KeyboardInterrupt", 130, ""),
        ("os.kill(os.getpid(), 9)", 137, "the script was ended by SIGKILL"),
    ],
)
def test_status_of_a_single_rank_is_that_of_the_script(runs, statement, status, said):
    found, out, err = runs.run(runs.script(f"import os, sys\n{statement}\n"), ranks=1)
    assert (found, out) == (status, "")
    assert said in err if said else err == ""


def test_traceback_of_a_single_rank_is_that_of_plain_python(runs):
    script = runs.script("def f():\n    raise ValueError('bad sample 7')\nf()\n")
    status, _, err = runs.run(script, ranks=1)
    plain = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert status == plain.returncode == 1
    assert err == plain.stderr


def test_an_exception_hook_of_the_user_is_called(runs):
    hook = "import sys\nsys.excepthook = lambda *_: print('hooked')\nraise ValueError('x')\n"
    status, out, err = runs.run(runs.script(hook), ranks=1)
    assert (status, out) == (1, "hooked\n")
    assert "ValueError: x" in err


def test_one_rank_has_no_label_and_the_stdin_of_the_launcher(runs):
    script = runs.script("print(input())\n")
    process = runs.start(script, ranks=1, stdin=subprocess.PIPE)
    out, _ = process.communicate("typed\n", timeout=30)
    assert out == "typed\n"


def test_lines_of_other_ranks_carry_their_rank_on_the_same_stream(runs):
    script = runs.script(
        "import os, sys\n"
        "rank = os.environ['UNIFIED_IPU_RANK']\n"
        "print('out', rank)\n"
        "print('err', rank, file=sys.stderr)\n"
        "sys.stdout.write('no end' if rank != '0' else '')\n"
    )
    _, out, err = runs.run(script, ranks=3, environ={"OMP_NUM_THREADS": "1"})
    expected = ["[rank 1] no end", "[rank 1] out 1", "[rank 2] no end", "[rank 2] out 2", "out 0"]
    assert sorted(out.splitlines()) == expected
    assert told(err) == ["[rank 1] err 1", "[rank 2] err 2", "err 0"]


def test_much_output_of_all_ranks_is_complete_and_never_torn(runs):
    script = runs.script(
        "import os\n"
        "rank = int(os.environ['UNIFIED_IPU_RANK'])\n"
        "for line in range(3000):\n"
        "    print(rank, line, 'x' * 300)\n"
    )
    status, out, _ = runs.run(script, ranks=3)
    assert status == 0
    lines = out.splitlines()
    for rank, label in ((0, ""), (1, "[rank 1] "), (2, "[rank 2] ")):
        found = [line for line in lines if line.startswith(f"{label}{rank} ")]
        wrong = [
            line[:40]
            for number, line in enumerate(found)
            if line != f"{label}{rank} {number} {'x' * 300}"
        ]
        assert wrong[:3] == []
        assert len(found) == 3000
    assert len(lines) == 9000


def test_a_huge_line_and_a_redrawn_bar_pass(runs):
    script = runs.script(
        "import os, sys\n"
        "if os.environ['UNIFIED_IPU_RANK'] == '1':\n"
        "    print('y' * 3_000_000)\n"
        "    for step in range(100):\n"
        "        sys.stderr.write(f'\\rstep {step}')\n"
        "    sys.stderr.write('\\n')\n"
    )
    status, out, err = runs.run(script, ranks=2, environ={"OMP_NUM_THREADS": "1"})
    assert status == 0
    pieces = out.splitlines()  # memory is bounded, so lines of more than 1 MiB are cut
    assert {piece[:9] for piece in pieces} == {"[rank 1] "}
    assert sum(len(piece) - 9 for piece in pieces) == out.count("y") == 3_000_000
    assert told(err) == ["[rank 1] step 99"]


def test_a_reader_that_goes_away_does_not_block_the_ranks(runs):
    script = runs.script(
        "import os\n"
        "if os.environ['UNIFIED_IPU_RANK'] == '1':\n"
        "    print('z\\n' * 100_000)\n"
        "    open('done', 'w')\n"
    )
    reading, writing = os.pipe()
    process = runs.start(script, ranks=2, stdout=writing)
    os.close(writing)
    os.close(reading)
    assert process.wait(timeout=30) == 0
    assert (runs.folder / "done").exists()


def test_a_rank_that_ends_early_and_well_ends_nobody_else(runs):
    script = runs.script(
        "import os, time\n"
        "if os.environ['UNIFIED_IPU_RANK'] == '1':\n"
        "    time.sleep(0.5)\n"
        "    print('still here')\n"
    )
    assert runs.run(script, ranks=2)[:2] == (0, "[rank 1] still here\n")


def test_what_a_rank_has_left_running_ends_with_the_run(runs):
    script = runs.script("import subprocess\nsubprocess.Popen(['sleep', '99'])\n")
    status, _, _ = runs.run(script, ranks=2)
    assert status == 0
