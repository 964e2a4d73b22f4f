"""Models that PyTorch exported: our graph's values and gradients are those of the model itself."""

from __future__ import annotations

import copy
import io
import warnings
from typing import Any, Callable, Dict, Tuple

import pytest
import torch
from onnx import ModelProto
from torch import nn
from torch.nn import functional

from unified_ipu_onnx.module import GraphModule


class Calls(nn.Module):
    """A function of the input and of modules."""

    def __init__(self, function: Callable[..., Any], *modules: nn.Module) -> None:
        super().__init__()
        self.function = function
        self.held = nn.ModuleList(modules)

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x, *self.held)


ACTIVATIONS = [
    nn.GELU(), nn.GELU("tanh"), nn.SiLU(), nn.Mish(), nn.Hardswish(), nn.Hardsigmoid(), nn.ELU(),
    nn.SELU(), nn.CELU(), nn.LeakyReLU(), nn.PReLU(), nn.Softplus(), nn.Softsign(),
    nn.Tanhshrink(), nn.Hardshrink(), nn.Softshrink(), nn.LogSigmoid(), nn.ReLU6(), nn.Hardtanh(),
]  # fmt: skip

PLACES = torch.tensor([[0, 1], [2, 0], [1, 4]])


def _elementwise(x: torch.Tensor) -> torch.Tensor:
    positive = x.abs() + 0.1
    found = x.sin() + x.cos() + x.exp() + x.tanh() + x.sigmoid() + x.erf() + x.pow(2) + x.atan()
    found = found + positive.log() + positive.sqrt() + positive.rsqrt() + positive.reciprocal()
    found = found + positive.log2() + positive.log1p() + x.floor() + x.round()
    return found + x.sign() + x.clamp(-1, 1) + torch.where(x > 0, x, x * 2)


def _pools(x: torch.Tensor) -> torch.Tensor:
    return (
        functional.max_pool2d(x, 3, 2, 1, ceil_mode=True).sum()
        + functional.avg_pool2d(x, 3, 2, 1, ceil_mode=True).sum()
        + functional.avg_pool2d(x, 2, count_include_pad=False).sum()
        + functional.adaptive_max_pool2d(x, 1).sum()
        + functional.lp_pool2d(x.abs() + 0.1, 2, 2).sum()
    )


def _statistics(x: torch.Tensor) -> torch.Tensor:
    found = x.std(1) + x.var(1) + x.norm(dim=1) + x.logsumexp(1)
    return found + x.amax(1) + x.prod(1) + x.mean(1)


def _masked_attention(x: torch.Tensor) -> torch.Tensor:
    hidden = torch.ones(3, 3).triu(1).bool()
    scores = (x @ x.transpose(-1, -2)).masked_fill(hidden, float("-inf"))
    return torch.softmax(scores, -1) @ x


def _scattered(x: torch.Tensor) -> torch.Tensor:
    empty = torch.zeros(3, 5, dtype=x.dtype)
    return empty.scatter(1, PLACES, x[:, :2]) + empty.scatter_add(1, PLACES, x[:, :2])


def _encoder(**settings: Any) -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, **settings)
    return Calls(lambda x, held: held(x), layer)


def _attention(x: torch.Tensor, layer: Any) -> Any:
    return layer(x, x, x, need_weights=False)[0]


# Name: the model, the shape of its input, the first operator set that can say it.
MODELS: Dict[str, Tuple[Callable[[], nn.Module], Tuple[int, ...], int]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), (4, 6), 9),
    "activations": (
        lambda: Calls(lambda x, *a: sum(f(x) for f in a), *copy.deepcopy(ACTIVATIONS)), (4, 6), 17,
    ),
    "gated": (lambda: nn.Sequential(nn.Linear(6, 8), nn.GLU()), (4, 6), 9),
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
            nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, groups=8), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Linear(8, 3),
        ),
        (4, 3, 10, 10),
        9,
    ),
    "transposed": (
        lambda: nn.ConvTranspose2d(3, 4, 3, stride=2, padding=1, output_padding=1),
        (2, 3, 5, 5),
        9,
    ),
    "line": (
        lambda: nn.Sequential(nn.Conv1d(2, 3, 3, padding=1), nn.BatchNorm1d(3), nn.AvgPool1d(2)),
        (2, 2, 8),
        9,
    ),
    "volume": (lambda: nn.Conv3d(2, 3, 2), (2, 2, 4, 4, 4), 9),
    "norms": (
        lambda: nn.Sequential(
            nn.GroupNorm(2, 4), nn.InstanceNorm2d(4, affine=True), nn.LayerNorm([4, 5, 5]),
            nn.LocalResponseNorm(3),
        ),
        (2, 4, 5, 5),
        9,
    ),
    "attention": (
        lambda: Calls(_attention, nn.MultiheadAttention(8, 2, batch_first=True)), (2, 5, 8), 14,
    ),
    "encoder": (_encoder, (2, 5, 8), 14),
    "encoder, norm first": (lambda: _encoder(norm_first=True), (2, 5, 8), 14),
    "decoder": (
        lambda: Calls(
            lambda x, layer: layer(x, x),
            nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
        ),
        (2, 5, 8),
        14,
    ),
    "masked attention": (lambda: Calls(_masked_attention), (2, 3, 4), 11),
    "lstm": (
        lambda: Calls(
            lambda x, m: m(x)[0], nn.LSTM(4, 5, 2, bidirectional=True, batch_first=True)
        ),
        (1, 6, 4),
        11,
    ),
    "gru": (lambda: Calls(lambda x, m: m(x)[0], nn.GRU(4, 5, 2)), (6, 1, 4), 11),
    "rnn": (lambda: Calls(lambda x, m: m(x)[0], nn.RNN(4, 5, nonlinearity="relu")), (6, 1, 4), 11),
    "lstm cell": (lambda: Calls(lambda x, m: m(x)[0], nn.LSTMCell(4, 5)), (3, 4), 11),
    "resizing": (
        lambda: nn.Sequential(
            nn.Upsample(scale_factor=2, mode="nearest"),
            nn.Upsample(scale_factor=1.5, mode="bilinear", align_corners=False),
            nn.Upsample(size=(9, 9), mode="bilinear", align_corners=True),
        ),
        (2, 3, 4, 4),
        11,
    ),
    "bicubic": (lambda: nn.Upsample(scale_factor=2, mode="bicubic"), (2, 3, 4, 4), 11),
    "pixel shuffle": (lambda: nn.PixelShuffle(2), (2, 8, 3, 3), 9),
    "pools": (lambda: Calls(_pools), (2, 3, 7, 7), 11),
    "padding": (
        lambda: Calls(
            lambda x: functional.pad(x, (1, 2, 0, 1))
            + functional.pad(x, (1, 2, 0, 1), mode="reflect")
            + functional.pad(x, (1, 2, 0, 1), mode="replicate")
        ),
        (2, 3, 5, 5),
        11,
    ),
    "grid sample": (
        lambda: Calls(
            lambda x: functional.grid_sample(
                x, torch.tanh(x[:, :2].permute(0, 2, 3, 1)), align_corners=False
            )
        ),
        (2, 3, 4, 4),
        17,
    ),
    "einsum": (lambda: Calls(lambda x: torch.einsum("bij,bkj->bik", x, x)), (2, 3, 4), 13),
    "sorting": (
        lambda: Calls(lambda x: x.topk(2, -1)[0] + x.sort(-1)[0][..., :2]), (3, 5), 11,
    ),
    "running sum": (lambda: Calls(lambda x: x.cumsum(1)), (3, 5), 11),
    "picking": (
        lambda: Calls(
            lambda x: x.gather(1, PLACES)
            + x[:, [0, 2]]
            + x.index_select(1, torch.tensor([0, 3]))
        ),
        (3, 5),
        11,
    ),
    "scattering": (lambda: Calls(_scattered), (3, 5), 17),
    "statistics": (lambda: Calls(_statistics), (3, 5), 11),
    "element by element": (lambda: Calls(_elementwise), (3, 5), 11),
    "moving": (
        lambda: Calls(lambda x: x.roll(1, 1) + x.flip(1) + x.tril() + x.triu()), (5, 5), 14,
    ),
    "repeating": (
        lambda: Calls(lambda x: x.repeat(1, 2) + x.repeat_interleave(2, 1)), (3, 5), 11,
    ),
    "distances": (
        lambda: Calls(
            lambda x: functional.cosine_similarity(x, x + 1, dim=1)
            + functional.normalize(x, dim=1).sum(1)
            + functional.pairwise_distance(x, x + 1)
        ),
        (3, 4),
        11,
    ),
    "shapes": (
        lambda: Calls(
            lambda x: x.view(x.size(0), -1).unsqueeze(1).expand(-1, 2, -1).reshape(x.shape[0], -1)
            + torch.arange(2 * x.shape[1] * x.shape[2], dtype=x.dtype)
        ),
        (3, 2, 2),
        11,
    ),
    "products": (
        lambda: Calls(lambda x: torch.baddbmm(x, x, x) + torch.bmm(x, x) + x @ x), (2, 3, 3), 11,
    ),
}  # fmt: skip


def exported(model: nn.Module, x: torch.Tensor, opset: int) -> ModelProto:
    """What PyTorch writes of the model in training, every weight under its own name."""
    buffer: Any = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on the age of this exporter, and on traced shapes
        torch.onnx.export(
            model,
            (x,),
            buffer,
            dynamo=False,
            opset_version=opset,
            training=torch.onnx.TrainingMode.TRAINING,
            do_constant_folding=False,
        )
    proto = ModelProto()
    proto.ParseFromString(buffer.getvalue())
    return proto


# Written in single precision, as the exporter's own constants are; the gradient through one norm
# after another is small against its terms.
IN_DOUBLE = {"norms"}


@pytest.mark.parametrize(
    ("name", "opset"),
    [
        (name, opset)
        for name, (_, _, first) in MODELS.items()
        for opset in sorted({first, 14, 20})
        if opset >= first
    ],
)
def test_values_and_gradients_are_those_of_the_exported_model(name: str, opset: int) -> None:
    make, shape, _ = MODELS[name]
    torch.manual_seed(7)
    dtype = torch.float64 if name in IN_DOUBLE else torch.float32
    model = make().to(dtype).train()
    x = torch.randn(shape, dtype=dtype)
    graph = GraphModule.from_model(exported(copy.deepcopy(model), x, opset)).train()
    given = [x.clone().requires_grad_() for _ in range(2)]
    theirs, ours = model(given[0]), graph(given[1])
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert graph.fallbacks == ()

    own = {graph.initializer_names[key]: value for key, value in graph.named_parameters()}
    names = [key for key, _ in model.named_parameters() if key in own]
    # None is folded away or renamed, gates included, which the graph itself puts in order.
    assert len(names) == len(list(model.parameters()))
    cotangent = torch.randn_like(theirs)
    weights = dict(model.named_parameters())
    expected = torch.autograd.grad(
        (theirs * cotangent).sum(), [given[0], *(weights[key] for key in names)]
    )
    found = torch.autograd.grad((ours * cotangent).sum(), [given[1], *(own[key] for key in names)])
    for own_gradient, gradient in zip(found, expected):
        torch.testing.assert_close(own_gradient, gradient, rtol=1e-4, atol=2e-5)
