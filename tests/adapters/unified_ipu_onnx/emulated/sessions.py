"""Small PopART programs: a linear model whose gradients can be written down."""

from __future__ import annotations

import numpy as np

from unified_ipu_onnx.emulated import popart


def array(*values, shape=None):
    found = np.array(values, np.float32)
    return found if shape is None else found.reshape(shape)


class Linear:
    """``loss = reduction(x * w * t)``, with ``w`` a scalar: the gradient is that of x * t.

    Fed with x = t = n the gradient of a row is n squared.
    """

    def __init__(self, rows=1, reduction=popart.ReductionType.Sum, start=0.0):
        builder = popart.Builder()
        shape = popart.TensorInfo("FLOAT", [rows, 1])
        self.x, self.t = builder.addInputTensor(shape), builder.addInputTensor(shape)
        self.w = builder.addInitializedInputTensor(array(start, shape=[1, 1]), "w")
        onnx = builder.aiOnnxOpset11
        self.y = onnx.matmul([self.x, self.w])
        self.loss = builder.aiGraphcore.identityloss([onnx.mul([self.y, self.t])], reduction)
        builder.addOutputTensor(self.y)
        self.builder = builder

    def session(self, updates=1, anchors=(), optimizer=None, ipus=1, returns="All", **options):
        if not isinstance(anchors, dict):
            anchors = {name: popart.AnchorReturnType(returns) for name in anchors}
        chosen = popart.SessionOptions()
        for name, value in options.items():
            setattr(chosen, name, value)
        session = popart.TrainingSession(
            fnModel=self.builder.getModelProto(),
            dataFlow=popart.DataFlow(updates, anchors),
            loss=self.loss,
            optimizer=optimizer or popart.SGD({"defaultLearningRate": (1.0, False)}),
            deviceInfo=popart.DeviceManager().acquireAvailableDevice(ipus),
            userOptions=chosen,
        )
        session.prepareDevice()
        session.weightsFromHost()
        return session

    def run(self, session, numbers):
        anchors = session.initAnchorArrays()
        rows = array(*numbers)
        session.run(popart.PyStepIO({self.x: rows, self.t: rows}, anchors))
        return anchors

    def weight(self, session):
        return float(read(session, w=[1, 1])["w"].item())


def read(session, **shapes):
    """Weights or slots by name; a name with a prefix is written with ``__`` for ``___``."""
    arrays = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    session.weightsToHost()
    session.readWeights(popart.PyWeightsIO(arrays))
    return arrays


def replicas(count):
    return {"enableReplicatedGraphs": count > 1, "replicatedGraphCount": count, "ipus": count}


def accumulating(count):
    return {"enableGradientAccumulation": count > 1, "accumulationFactor": count}
