"""Models that torch exports compute and learn as graphs what they do as modules."""

from __future__ import annotations

import copy
import io
import logging
import warnings
from typing import Any, cast

import onnx
import pytest
import torch
from torch import nn
from torch.nn import functional

from unified_ipu_onnx.module import GraphModule


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.conv2, self.norm2 = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)

    def forward(self, x):
        h = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(x + self.norm2(self.conv2(h)))


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.pool = nn.Conv2d(3, 8, 7, 2, 3), nn.MaxPool2d(3, 2, 1)
        self.blocks, self.head = nn.Sequential(Block(), Block()), nn.Linear(8, 5)

    def forward(self, x):
        h = self.blocks(self.pool(self.stem(x)))
        return self.head(functional.adaptive_avg_pool2d(h, 1).flatten(1))


class Decoder(nn.Module):
    """A causal transformer whose output layer is its embedding."""

    def __init__(self):
        super().__init__()
        self.embed, self.attend, self.out = nn.Embedding(11, 8), nn.Linear(8, 24), nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.feed = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8))
        self.register_buffer("mask", torch.tril(torch.ones(16, 16)).view(1, 1, 16, 16))

    def forward(self, tokens):
        x = self.embed(tokens)
        rows, length, width = x.shape
        parts = self.attend(self.norm(x)).split(width, 2)
        q, k, v = (p.view(rows, length, 2, width // 2).transpose(1, 2) for p in parts)
        scores = (q @ k.transpose(-2, -1)) * (width // 2) ** -0.5
        hidden = self.get_buffer("mask")[:, :, :length, :length] == 0
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(rows, length, width))
        return (x + self.feed(self.norm(x))) @ self.embed.weight.t()


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.place = nn.Parameter(torch.randn(1, 6, 8))

    def forward(self, x):
        return self.layers(x + self.place[:, : x.shape[1]])


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.layers = getattr(nn, kind)(4, 6, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(12, 3)

    def forward(self, x):
        return self.head(self.layers(x)[0][:, -1])


class Hourglass(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.up = nn.Conv2d(1, 4, 3, padding=1), nn.ConvTranspose2d(4, 4, 2, 2)
        self.groups, self.instances = nn.GroupNorm(2, 4), nn.InstanceNorm2d(4, affine=True)
        self.last = nn.Conv2d(8, 1, 1)

    def forward(self, x):
        d = functional.silu(self.groups(self.down(x)))
        e = functional.avg_pool2d(self.instances(d), 2)
        wide = functional.interpolate(e, scale_factor=2, mode="bilinear", align_corners=False)
        return self.last(torch.cat([d, self.up(e) + wide], 1)).sigmoid()


def perceptron():
    return nn.Sequential(
        nn.Linear(4, 8), nn.PReLU(8), nn.Dropout(0.0), nn.Linear(8, 2), nn.LogSoftmax(-1)
    )


MODELS = {
    "perceptron, set 9": (perceptron, lambda: torch.randn(3, 4), 9),
    "residual network": (Residual, lambda: torch.randn(4, 3, 32, 32), 17),
    "residual network, set 11": (Residual, lambda: torch.randn(4, 3, 32, 32), 11),
    "hourglass": (Hourglass, lambda: torch.randn(2, 1, 8, 8), 18),
    "encoder": (Encoder, lambda: torch.randn(3, 6, 8), 17),
    "decoder": (Decoder, lambda: torch.randint(0, 11, (2, 7)), 13),
    "decoder, set 20": (Decoder, lambda: torch.randint(0, 11, (2, 7)), 20),
    "LSTM": (lambda: Recurrent("LSTM"), lambda: torch.randn(3, 5, 4), 17),
    "GRU": (lambda: Recurrent("GRU"), lambda: torch.randn(3, 5, 4), 17),
}


def exported(model, x, opset):
    file = io.BytesIO()
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            # That this exporter is the older one, and that traced shapes become constants.
            warnings.simplefilter("ignore")
            torch.onnx.export(
                model, (x,), cast("Any", file), dynamo=False, opset_version=opset,
                input_names=["x"],
                training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False,
                dynamic_axes={"x": {0: "rows"}},
            )  # fmt: skip
    finally:
        logging.disable(logging.NOTSET)
    return onnx.load_from_string(file.getvalue())


@pytest.mark.parametrize("name", MODELS)
def test_an_exported_model_computes_and_learns_as_it_did_in_torch(name):
    make, draw, opset = MODELS[name]
    torch.manual_seed(0)
    model = make().train()
    graph = GraphModule.from_model(exported(copy.deepcopy(model), draw(), opset)).train()
    assert graph.fallbacks == ()
    own = {initializer: name for name, initializer in graph.initializer_names.items()}
    for _ in range(3):
        x = draw()
        expected, found = model(x), graph(x)
        pull = torch.randn_like(found)
        assert torch.allclose(found, expected, rtol=1e-4, atol=1e-5)
        (expected * pull).sum().backward()
        (found * pull).sum().backward()
        for parameter_name, parameter in model.named_parameters():
            twin = graph.get_parameter(own[parameter_name])
            assert parameter.grad is not None
            assert twin.grad is not None
            scale = float(parameter.grad.abs().max()) + 1e-3
            assert float((twin.grad - parameter.grad).abs().max()) < 1e-4 * scale
            with torch.no_grad():
                for each, grad in ((parameter, parameter.grad), (twin, twin.grad)):
                    each.sub_(0.005 * grad)
                    each.grad = None
    assert len(list(graph.parameters())) == len(list(model.parameters()))


def test_the_batch_may_have_any_size_afterwards():
    torch.manual_seed(0)
    for make, draw, opset in (MODELS["decoder"], MODELS["encoder"], MODELS["LSTM"]):
        model = make().eval()
        graph = GraphModule.from_model(exported(copy.deepcopy(model), draw(), opset)).eval()
        x = draw()
        x = torch.cat([x, x])
        assert torch.allclose(graph(x), model(x), rtol=1e-4, atol=1e-5)
