"""The frameworks beside each other in one process, in every order, and one of them absent."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import permutations

import pytest

pytestmark = [pytest.mark.timeout(240), pytest.mark.slow]

# What crashed in practice was the first use after the imports, so each is used.
USES = """
import onnx, onnx.helper, tensorflow as tf, torch
from unified_ipu_tensorflow import bridge as tf_bridge
from unified_ipu_torch import bridge as torch_bridge
node = onnx.helper.make_node("Relu", ["x"], ["y"])
info = [onnx.helper.make_tensor_value_info(name, 1, [2]) for name in "xy"]
model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", info[:1], info[1:]))
assert onnx.load_from_string(model.SerializeToString()).graph.name == "g"
there = torch_bridge.from_any(tf.linalg.matvec(tf.eye(2), tf.constant([1.0, 2.0])))
assert tf_bridge.from_any(torch.eye(2) @ there).numpy().tolist() == [1.0, 2.0]
"""
LIBRARY = "unified_ipu"


def orders():
    """Every order of the frameworks; the library comes first, between them, and last in turn."""
    for number, names in enumerate(permutations(("torch", "tensorflow", "onnx"))):
        place = number % 4
        yield (*names[:place], LIBRARY, *names[place:])


def run(code):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=100
    )


@pytest.mark.case("O-P6")
def test_every_order_of_importing_the_frameworks_works():
    wanted = list(orders())
    with ThreadPoolExecutor(2) as pool:
        done = pool.map(lambda names: run(f"import {', '.join(names)}\n{USES}"), wanted)
    failures = [
        f"{names}: {d.returncode} {d.stderr}" for names, d in zip(wanted, done) if d.returncode
    ]
    assert not failures, failures


@pytest.mark.case("O-P6")
def test_without_tensorflow_the_error_names_the_package_to_install():
    done = run(
        "import sys; sys.modules['tensorflow'] = None\n"
        "import unified_ipu as ui\n"
        "plan = ui.Plan().replace(data={'isolate': 'never'})\n"
        "with ui.Session(plan, argv=['script.py']) as session:\n"
        "    try:\n"
        "        session.loader(ui.data.tensorflow('json:loads', size=64))\n"
        "    except ui.DataError as error:\n"
        "        print(error)\n"
    )
    assert done.returncode == 0, done.stderr
    assert "pip install 'unified-ipu[tensorflow]'" in done.stdout


@pytest.mark.case("O-P6")
def test_without_tensorflow_and_onnx_torch_trains():
    done = run(
        "import sys; sys.modules['tensorflow'] = sys.modules['onnx'] = None\n"
        "import torch, unified_ipu as ui\n"
        "with ui.Session(ui.Plan(), argv=['script.py']) as session:\n"
        "    model = torch.nn.Linear(2, 1)\n"
        "    sgd = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "    program = session.compile(model, loss=torch.nn.MSELoss(), optimizer=sgd)\n"
        "    print(program.step((torch.ones(4, 2), torch.ones(4, 1))).updates)\n"
        "    try:\n"
        "        session.compile('model.onnx', loss=ui.losses.mean_squared_error())\n"
        "    except ui.AdapterLoadError as error:\n"
        "        print(error)\n"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1\n")
    assert "pip install 'unified-ipu[onnx]'" in done.stdout
