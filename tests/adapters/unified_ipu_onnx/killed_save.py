"""Saves a model many times, in processes that die at their n-th file operation. Run as a script."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

from unified_ipu_onnx.writing import save_model

OPERATIONS = ("fsync", "rename", "replace", "unlink")


def model(value: float):
    weight = helper.make_tensor(
        "w", TensorProto.FLOAT, [64, 64], torch.full((64, 64), value).numpy().tobytes(), raw=True
    )
    bias = helper.make_tensor("b", TensorProto.FLOAT, [2], [value, value])
    return helper.make_model(helper.make_graph([], "g", [], [], [weight, bias]))


def values(path: Path):
    """The distinct values of all weights of the model at ``path``."""
    loaded = onnx.load(str(path))
    return {float(v) for t in loaded.graph.initializer for v in numpy_helper.to_array(t).ravel()}


def die_at(count: int) -> None:
    """End this process without any clean-up before its file operation number ``count``."""
    left = [count]

    def dying(original):
        def operation(*arguments, **keywords):
            left[0] -= 1
            if left[0] < 0:
                os._exit(7)
            return original(*arguments, **keywords)

        return operation

    for name in OPERATIONS:
        setattr(os, name, dying(getattr(os, name)))


def main(folder: Path) -> None:
    deaths, count = 0, 0
    path = folder / "model.onnx"
    save_model(model(0.0), path, limit=1024)
    now = 0.0
    while True:
        child = os.fork()
        if child == 0:
            die_at(count)
            save_model(model(now + 1.0), path, limit=1024)
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        found = values(path)
        assert found in ({now}, {now + 1.0}), (count, found)
        if status == 0:
            assert found == {now + 1.0}
            break
        assert status == 7, status
        deaths, count, now = deaths + 1, count + 1, max(found)
    data = onnx.load(str(path), load_external_data=False).graph.initializer[0].external_data
    location = {entry.key: entry.value for entry in data}["location"]
    print(deaths, (folder / location).stat().st_size, len(list(folder.iterdir())))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
