"""A pipeline of TensorFlow beside a Keras model that was compiled before."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import unified_ipu as ui
from unified_ipu.data.local_feed import LocalFeed

pytestmark = [pytest.mark.timeout(120), pytest.mark.slow]

keras: Any = tf.keras


@pytest.fixture(autouse=True)
def imports_as_they_were(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("tf_pipelines", None)


def test_the_pipeline_of_a_compiled_keras_model_runs_in_its_process():
    plan = ui.Plan().replace({"seed": 5, "mesh.data": 1, "batch.global_batch_size": 8})
    with ui.Session(plan, argv=[__file__]) as session:
        model = keras.Sequential([keras.Input((2, 3)), keras.layers.Flatten()])
        session.compile(model, loss=keras.losses.MeanSquaredError())
        loader = session.loader(ui.data.tensorflow("tf_pipelines:train", size=40))
        assert isinstance(loader._feed, LocalFeed)
        seen = [micro for call in loader for u in call.updates for micro in u.micro_batches]
        assert [micro.rows for micro in seen] == [8] * 5
        for micro in seen:  # row i of the pipeline holds 6i to 6i + 5
            assert np.array_equal(micro.tree["x"][:, 1, 2], micro.ids * 6.0 + 5)
        assert str(loader.certificate()) == "40 of 40 samples, each once"
