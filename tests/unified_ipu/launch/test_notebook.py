"""`launch` where functions belong to no module: in a notebook, and in a script itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import pytest

pytestmark = [pytest.mark.timeout(110), pytest.mark.slow]

# Runs cells in a kernel of their own and prints the outputs of each.
RUN_CELLS = """
import json, sys
import nbformat
from nbclient import NotebookClient

cells = [nbformat.v4.new_code_cell(text) for text in json.load(sys.stdin)]
notebook = nbformat.v4.new_notebook(cells=cells)
NotebookClient(notebook, timeout=80, kernel_name="python3", allow_errors=True).execute()
print(json.dumps([cell.outputs for cell in notebook.cells]))
"""

FUNCTION = """
import unified_ipu as ui

factor = 10

def work(base):
    with ui.Session(argv=[]) as session:
        print("hello from rank", session.rank)
        ranks = session.communicator().all_gather_value(session.rank)
        return [base + factor * rank for rank in ranks]
"""
CALL = "ui.launch(work, args=(3,), settings=['mesh.data=2'])"


def run_cells(cells, folder):
    """Text of stdout and stderr, and results or errors, of each cell."""
    code = [sys.executable, "-c", RUN_CELLS]
    places = ("JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR")
    environment = {**os.environ, **{name: str(folder / name) for name in places}}
    done = subprocess.run(
        code,
        input=json.dumps(cells),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        cwd=folder,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def said(outputs):
    return "".join(output["text"] for output in outputs if output["output_type"] == "stream")


def test_a_function_of_a_notebook_runs_on_all_ranks(tmp_path):
    pytest.importorskip("nbclient")
    failing = textwrap.dedent(
        """
        def fail():
            raise ValueError("on purpose")
        ui.launch(fail, settings=["mesh.data=2"])
        """
    )
    first, second, third, again = run_cells([FUNCTION, CALL, failing, CALL], tmp_path)
    assert first == []
    for outputs in (second, again):  # a failure in between leaves nothing behind
        (result,) = [part for part in outputs if part["output_type"] == "execute_result"]
        assert result["data"]["text/plain"] == "[3, 13]"
        assert "hello from rank 0" in said(outputs)
        assert "[rank 1] hello from rank 1" in said(outputs)
    (error,) = [part for part in third if part["output_type"] == "error"]
    assert error["ename"] == "LaunchError"
    assert "ValueError: on purpose" in error["evalue"]


def test_a_function_of_the_script_itself_runs_on_all_ranks(tmp_path):
    pytest.importorskip("cloudpickle")
    script = tmp_path / "work_here.py"
    script.write_text(f"{FUNCTION}\nif __name__ == '__main__':\n    print({CALL})\n")
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[3, 13]"
    assert "[rank 1] hello from rank 1" in done.stdout
