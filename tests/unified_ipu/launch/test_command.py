"""Command lines of other launchers, as their manuals want them."""

from __future__ import annotations

import pytest

from unified_ipu.cli.main import main
from unified_ipu.errors import PlanError
from unified_ipu.launch import launcher_command
from unified_ipu.plan import Plan


def words(launcher, plan=None, **options):
    plan = plan or Plan().replace({"mesh.data": 4})
    return " ".join(launcher_command(launcher, plan, "train.py", ["--fast"], **options))


def test_poprun_is_told_all_replicas_and_how_many_processes_drive_them():
    plan = Plan().replace(
        {
            "mesh.data": 8,
            "ipu.replicas_per_process": 2,
            "ipu.ipus_per_replica": 4,
            "compile.cache_dir": "cache",
        }
    )
    assert words("poprun", plan, plan_path="plan.toml", settings=["seed=3"]) == (
        "poprun --num-replicas 8 --num-instances 4 --ipus-per-replica 4 "
        "--executable-cache-path cache python train.py --fast --plan plan.toml --set seed=3"
    )


def test_a_pipeline_needs_an_ipu_for_each_stage():
    plan = Plan().replace({"mesh.data": 2, "mesh.stage": 2})
    assert "--ipus-per-replica 2" in words("poprun", plan)


@pytest.mark.parametrize(
    ("launcher", "expected"),
    [
        ("torchrun", "torchrun --nproc-per-node 4 train.py --fast"),
        ("mpirun", "mpirun -np 4 python train.py --fast"),
        ("srun", "srun --ntasks 4 python train.py --fast"),
    ],
)
def test_the_others_start_one_process_a_replica(launcher, expected):
    assert words(launcher) == expected


def test_a_number_that_nobody_said_is_asked_for():
    with pytest.raises(PlanError, match=r"poprun has to be told how many.*--set mesh\.data=N"):
        words("poprun", Plan())


def test_replicas_that_do_not_divide_into_processes_are_refused():
    with pytest.raises(PlanError, match=r"6 replicas .* choose a divisor of 6"):
        words("poprun", Plan().replace({"mesh.data": 6, "ipu.replicas_per_process": 4}))


def test_a_dry_run_prints_the_command_and_starts_nothing(capsys, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit(9)", encoding="utf-8")
    asked = ["run", "--launcher", "poprun", "--dry-run", "--set", "mesh.data=2", str(script), "-x"]
    assert main(asked) == 0
    assert capsys.readouterr().out == (
        "poprun --num-replicas 2 --num-instances 2 --ipus-per-replica 1 "
        f"python {script} -x --set mesh.data=2\n"
    )


def test_a_plan_beside_the_script_counts(capsys, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("", encoding="utf-8")
    (tmp_path / "plan.toml").write_text("[mesh]\ndata = 3\n", encoding="utf-8")
    assert main(["run", "--launcher", "srun", "--dry-run", str(script)]) == 0
    assert capsys.readouterr().out == f"srun --ntasks 3 python {script}\n"


def test_a_launcher_without_dry_run_is_refused_with_the_command(capsys, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("", encoding="utf-8")
    asked = ["run", "--launcher", "mpirun", "--set", "mesh.data=2", str(script)]
    assert main(asked) == 2
    assert "mpirun -np 2 python" in capsys.readouterr().err


def test_a_dry_run_needs_a_launcher(capsys, tmp_path):
    assert main(["run", "--dry-run", str(tmp_path / "train.py")]) == 2
    assert "--launcher" in capsys.readouterr().err


def test_ranks_of_another_launcher_are_not_bound_by_ours(capsys, tmp_path):
    asked = ["run", "--launcher", "srun", "--dry-run", "--bind", "core", str(tmp_path / "train.py")]
    assert main(asked) == 2
    assert "ranks of srun are bound by its own options" in capsys.readouterr().err
