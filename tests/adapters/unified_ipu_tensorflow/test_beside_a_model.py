"""Dataset objects and pipelines in the rank's own process, beside a torch model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = [pytest.mark.timeout(120), pytest.mark.slow]

SCRIPT = Path(__file__).with_name("beside.py")
FRESH = (  # each needs a process in which TensorFlow has not run yet, or no global seed is set
    "datasets_that_may_differ_between_ranks_are_refused",
    "growth_is_set_on_every_gpu_before_the_first_operation",
    "threads_are_shared_between_ranks_before_the_first_operation",
)
CASES = {
    "what_torch_writes_never_reaches_the_dataset": "O-B3",
    "text_in_a_step_is_refused_by_the_name_of_its_column": "O-B5",
    "tensors_and_their_views_can_be_stepped_with": "O-B3",
    "text_in_a_dataset_is_refused_by_the_name_of_its_column": "O-B5",
}
NAMES = [
    line[len("def check_") :].partition("(")[0]
    for line in SCRIPT.read_text(encoding="utf-8").splitlines()
    if line.startswith("def check_")
]
LAST = "settings_that_come_too_late_are_a_warning"  # it leaves devices behind that are not there
SHARED = [name for name in NAMES if name not in {*FRESH, LAST}]


def run(*names):
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *names],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def results():
    return run(*SHARED, LAST)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.case(CASES[name])] if name in CASES else [])
        for name in SHARED
    ],
)
def test_beside_a_model(results, name):
    assert results[name] is None, results[name]


@pytest.mark.case("O-P4")
def test_settings_that_come_too_late_are_a_warning(results):
    assert results[LAST] is None, results[LAST]


@pytest.mark.case("O-P4")
@pytest.mark.parametrize("name", FRESH)
def test_settings_are_made_before_the_first_operation(name):
    assert run(name) == {name: None}


TRAIN = """
import json
import numpy as np, tensorflow as tf, torch
import unified_ipu as ui

def main():
    x = np.arange(40, dtype=np.float32).reshape(20, 2) / 40
    dataset = tf.data.Dataset.from_tensor_slices((x, x.sum(1, keepdims=True))).batch(5).prefetch(1)
    with ui.Session() as session:
        model = torch.nn.Linear(2, 1)
        torch.nn.init.zeros_(model.weight), torch.nn.init.zeros_(model.bias)
        sgd = torch.optim.SGD(model.parameters(), lr=0.25)
        program = session.compile(model, loss=torch.nn.MSELoss(), optimizer=sgd)
        program.fit(session.loader(dataset), epochs=2)
        weights = {name: value.ravel().tolist() for name, value in program.weights().items()}
        session.print("weights " + json.dumps(weights))

if __name__ == "__main__":
    main()
"""


def plain_training():
    """Two epochs of gradient descent over 8, 8 and 4 rows in their order, float64."""
    x = np.arange(40, dtype=np.float64).reshape(20, 2) / 40
    y, weight, bias = x.sum(1), np.zeros(2), 0.0
    for _ in range(2):
        for rows in (slice(0, 8), slice(8, 16), slice(16, 20)):
            error = x[rows] @ weight + bias - y[rows]
            weight = weight - 0.25 * 2 * (error[:, None] * x[rows]).mean(0)
            bias -= 0.25 * 2 * error.mean()
    return weight, bias


def test_two_ranks_train_from_a_dataset_object_as_one_does(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(TRAIN, encoding="utf-8")
    settings = ("mesh.data=2", "batch.global_batch_size=8", "batch.micro_batch_size=3")
    flags = [word for setting in settings for word in ("--set", setting)]
    done = subprocess.run(
        [sys.executable, "-m", "unified_ipu.cli.main", "run", *flags, str(script)],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert "in each epoch 20 of 20 samples, each once" in done.stdout
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("weights ")]
    got = json.loads(line[len("weights ") :])
    weight, bias = plain_training()
    np.testing.assert_allclose(got["weight"], weight, rtol=5e-5)
    np.testing.assert_allclose(got["bias"], [bias], rtol=5e-5)
