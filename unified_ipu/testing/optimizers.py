"""The optimizers of ``ui.optim``: literals, published cases, the oracle; and native ones."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Tuple

import numpy as np
import pytest

from unified_ipu.adapter import Capability, optim
from unified_ipu.testing import samples
from unified_ipu.testing.float_types import float_type_of, near
from unified_ipu.testing.on_devices import is_device
from unified_ipu.testing.ranks import Rank, Ranks
from unified_ipu.testing.scenarios import Training, batch_plan, compiled, make, train
from unified_ipu.testing.subject import Model, Subject
from unified_ipu.testing.suite import AdapterSuite, relative_error, requires
from unified_ipu.testing.update_oracle import (
    mlp_oracle,
    mlp_run,
    train_with_native_optimizer,
    updates_of_a_call,
)

Values = Mapping[str, Any]

OPTIONS = {
    "sgd": optim.SGD(lr=0.1),
    "sgd-decay": optim.SGD(lr=0.1, weight_decay=0.1),
    "momentum": optim.SGD(lr=0.1, momentum=0.9),
    "momentum-dampening": optim.SGD(lr=0.1, momentum=0.9, dampening=0.4),
    "momentum-decay": optim.SGD(lr=0.1, momentum=0.9, dampening=0.4, weight_decay=0.1),
    "nesterov": optim.SGD(lr=0.1, momentum=0.9, nesterov=True),
    "nesterov-decay": optim.SGD(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "adam": optim.Adam(lr=0.02),
    "adam-betas-eps": optim.Adam(lr=0.02, betas=(0.6, 0.9), eps=1e-2),
    "adam-decay": optim.Adam(lr=0.02, weight_decay=0.1),
    "adamw": optim.AdamW(lr=0.02, weight_decay=0.1),
    "adamw-betas-eps": optim.AdamW(lr=0.02, betas=(0.0, 0.5), eps=1e-3),
    "adamw-no-decay": optim.AdamW(lr=0.02, weight_decay=0.0),
}

BY_HAND = {
    # g is 1 in both updates, the weight starts at 1.
    "sgd": (optim.SGD(lr=0.1), [0.9, 0.8]),
    # d = 1 + 0.5 w: 1.5, then 1.425
    "decay": (optim.SGD(lr=0.1, weight_decay=0.5), [0.85, 0.7075]),
    # velocity 1, then 0.5 * 1 + 1
    "momentum": (optim.SGD(lr=0.1, momentum=0.5), [0.9, 0.75]),
    # the first velocity is not dampened: 1, then 0.5 * 1 + 0.75 * 1
    "dampening": (optim.SGD(lr=0.1, momentum=0.5, dampening=0.25), [0.9, 0.775]),
    # d = 1 + 0.5 * 1, then 1 + 0.5 * 1.5
    "nesterov": (optim.SGD(lr=0.1, momentum=0.5, nesterov=True), [0.85, 0.675]),
    # a constant gradient moves by the rate
    "adam": (optim.Adam(lr=0.1, eps=0.0), [0.9, 0.8]),
    # m_hat = v_hat = 1 at every step: 0.1 / (1 + 1) each
    "adam-eps": (optim.Adam(lr=0.1, eps=1.0), [0.95, 0.9]),
    # 1 * 0.95 - 0.1, then 0.85 * 0.95 - 0.1
    "adamw": (optim.AdamW(lr=0.1, eps=0.0, weight_decay=0.5), [0.85, 0.7075]),
}

# Far enough for the corrections of the moments to be 1, which those cases do without.
UNCORRECTED = {"step": 1e6}

PUBLISHED: Dict[str, Tuple[Any, Values, Values, Values, Values, Values]] = {
    # settings, weights, gradients, slots of weight, slots of bias, expected weights
    "momentum": (
        optim.SGD(lr=0.1, momentum=0.95, weight_decay=0.001),
        {"weight": [1.2, 2.8]},
        {"weight": [-0.94, -2.5]},
        {"momentum_buffer": [1.7, 3.6]},
        {},
        {"weight": [1.13238, 2.70772]},
    ),
    "nesterov_momentum": (
        optim.SGD(lr=0.1, momentum=0.95, nesterov=True, weight_decay=0.01),
        {"weight": [1.2, 2.8]},
        {"weight": [-0.94, -2.5]},
        {"momentum_buffer": [1.7, 3.6]},
        {},
        {"weight": [1.227535, 2.95714]},
    ),
    "momentum_multiple": (
        optim.SGD(lr=0.1, momentum=0.95, weight_decay=0.001),
        {"weight": [1.0, 2.0], "bias": [1.0]},
        {"weight": [-1.0, -3.0], "bias": [-1.0]},
        {"momentum_buffer": [4.0, 1.0]},
        {"momentum_buffer": [2.0]},
        {"weight": [0.7199, 2.2048], "bias": [0.9099]},
    ),
    "adam": (
        optim.Adam(lr=0.1, betas=(0.95, 0.1), eps=1e-7, weight_decay=0.001),
        {"weight": [1.2, 2.8]},
        {"weight": [-0.94, -2.5]},
        {"exp_avg": [1.7, 3.6], "exp_avg_sq": [0.1, 0.1], **UNCORRECTED},
        {},
        {"weight": [1.0250363491167394, 2.6610326709788175]},
    ),
    "adam_multiple": (
        optim.Adam(lr=0.1, betas=(0.95, 0.85), eps=1e-2, weight_decay=0.001),
        {"weight": [1.0, 2.0], "bias": [1.0]},
        {"weight": [-1.0, -3.0], "bias": [-1.0]},
        {"exp_avg": [4.0, 1.0], "exp_avg_sq": [1.0, 10.0], **UNCORRECTED},
        {"exp_avg": [2.0], "exp_avg_sq": [0.5], **UNCORRECTED},
        {"weight": [0.6286527936593902, 1.9745853505437945], "bias": [0.7591362374762826]},
    ),
}


def in_native_layout(model: Model, name: str, values: Values) -> Dict[str, Any]:
    """Slots of one canonical tensor by the framework's names; what is a column lies as it does."""
    found = {}
    for slot, value in values.items():
        array = np.asarray(value, np.float64)
        if slot == "step":
            array = array.astype(np.float32)
        elif name == "weight":
            array = array.reshape(-1, 1)
            array = np.ascontiguousarray(array.T) if name in model.transposed else array
        found[f"{model.names[name]}/{slot}"] = array
    return found


def update_from_state(
    rank: Rank, *, settings: Any, weights: Values, gradients: Values, slots: Mapping[str, Values]
) -> Any:
    """Make one update from given weights and slots with given gradients."""
    bias = weights.get("bias")
    sign = float(gradients["bias"][0]) if bias is not None else 1.0
    # Of ``target * (x @ weight + bias)`` the gradients are target * x and target.
    x = np.array([gradients["weight"]]) / sign
    with rank.session(rows=1) as session:
        model = rank.subject.linear(
            samples.column(*weights["weight"]), None if bias is None else np.array(bias)
        )
        program = rank.compile(
            session,
            model,
            loss=rank.subject.product_loss(),
            optimizer=settings,
        )
        for name, values in slots.items():
            program.executor.write(rank.floats(in_native_layout(model, name, values)))
        program.step(rank.floats((x, np.array([[sign]]))))
        return {n: v.reshape(-1).tolist() for n, v in model.canonical(program.weights()).items()}


def slots_after_one_update(rank: Rank, *, settings: Any) -> Dict[str, Any]:
    """Slots of the weight after an update whose gradient is [2, 3], as lists."""
    run = Training(
        make("linear", weight=samples.column(0.0, 0.0)), settings, loss=make("product_loss")
    )
    with rank.session(rows=1) as session:
        model = run.model.on(rank.subject)
        program = compiled(rank, session, model, run)
        program.step(rank.floats((np.array([[2.0, 3.0]]), samples.ones(1))))
        prefix = f"{model.names['weight']}/"
        names = [spec.name for spec in program.executor.tensors() if spec.role == "slot"]
        assert all(name.startswith(prefix) for name in names), names
        values = program.executor.read(names)
        return {name[len(prefix) :]: values[name].reshape(-1).tolist() for name in names}


class OptimizerSuite(AdapterSuite):
    """L5.2 and L5.3 for the optimizers of ``ui.optim``, required of every adapter; native ones."""

    tolerance_native: float = 1e-12
    """Of all weights after 50 updates of a native optimizer, whose arithmetic may be its own.

    An attribute of that name of the subject takes precedence; it says why beside it.
    """

    @pytest.mark.parametrize("which", sorted(BY_HAND))
    def test_l5_2_two_updates_worked_out_by_hand(self, ranks: Ranks, which: str) -> None:
        settings, expected = BY_HAND[which]
        run = Training(
            make("linear", weight=samples.column(1.0)),
            settings,
            loss=make("product_loss"),
            data=(samples.ones(4), samples.ones(4)),
            plan=batch_plan(2, 1),
        )
        trained = ranks.run(train, 1, run=run)[0]
        found = [float(weights["weight"][0, 0]) for weights in trained.trace]
        assert found == near(ranks, expected, rel=1e-12)

    @pytest.mark.parametrize("case", sorted(PUBLISHED))
    def test_l5_2_published_cases_from_a_given_state(self, ranks: Ranks, case: str) -> None:
        """The node tests of ONNX: test_momentum, test_adam and their kin, worked out in float64."""
        settings, weights, gradients, of_weight, of_bias, expected = PUBLISHED[case]
        slots = {"weight": of_weight, **({"bias": of_bias} if of_bias else {})}
        (found,) = ranks.run(
            update_from_state,
            settings=settings,
            weights=weights,
            gradients=gradients,
            slots=slots,
        )
        assert set(found) == set(expected)
        for name, values in expected.items():
            assert found[name] == near(ranks, values, rel=1e-12)

    @pytest.mark.parametrize("which", sorted(OPTIONS))
    def test_l5_3_fifty_updates_with_each_option_equal_the_oracle(
        self, ranks: Ranks, which: str
    ) -> None:
        settings = OPTIONS[which]
        expected = mlp_oracle(settings).parameters
        run = mlp_run(settings, 7, updates_per_call=updates_of_a_call(ranks))
        trained = ranks.run(train, run=run)[0]
        assert relative_error(trained.weights, expected) < self.tolerance_of(ranks)

    def test_l3_1_slots_have_the_names_and_values_of_pytorch(self, ranks: Ranks) -> None:
        def slots_of(settings: Any) -> Dict[str, List[float]]:
            found: Dict[str, List[float]] = ranks.run(slots_after_one_update, settings=settings)[0]
            return found

        assert slots_of(optim.SGD(lr=0.1)) == {}
        # SDKs damp the first velocity too, so their devices refuse it.
        dampening = 0.0 if is_device(ranks) else 0.5
        velocity = slots_of(optim.SGD(lr=0.1, momentum=0.5, dampening=dampening))
        assert velocity == {"momentum_buffer": [2.0, 3.0]}, "the rate stays outside"
        for settings in (optim.Adam(betas=(0.5, 0.75)), optim.AdamW(betas=(0.5, 0.75))):
            moments = slots_of(settings)
            assert moments == {"step": [1.0], "exp_avg": [1.0, 1.5], "exp_avg_sq": [1.0, 2.25]}

    @requires(Capability.NATIVE_OPTIMIZERS)
    @pytest.mark.parametrize(
        "optimizer", [optim.SGD(lr=0.1, momentum=0.9), optim.Adam(lr=0.01)], ids=["sgd", "adam"]
    )
    def test_native_optimizers_train_as_the_oracle(
        self, ranks: Ranks, subject: Subject, optimizer: Any
    ) -> None:
        tolerance = float(getattr(subject, "tolerance_native", self.tolerance_native))
        if float_type_of(ranks) != "float64":
            tolerance = max(tolerance, self.tolerance_of(ranks))
        oracle = mlp_oracle(optimizer)
        run = mlp_run(None, 3, updates_per_call=updates_of_a_call(ranks))
        for trained in ranks.run(train_with_native_optimizer, 2, run=run, settings=optimizer):
            assert relative_error(trained.weights, oracle.parameters) < tolerance

    @requires(Capability.NATIVE_OPTIMIZERS, Capability.PARAMETER_GROUPS)
    def test_each_parameter_group_keeps_its_rate(self, ranks: Ranks) -> None:
        run = Training(
            make("linear", weight=samples.column(0.0), bias=np.zeros(1)),
            None,
            loss=make("product_loss"),
            data=(samples.column(2, 2), samples.ones(2)),
            plan=batch_plan(2, 1),
            options={"schedule": quarter},
        )
        settings, rates = optim.SGD(lr=1.0), {"weight": 1.0, "bias": 0.5}
        for trained in ranks.run(
            train_with_native_optimizer, 2, run=run, settings=settings, rates=rates
        ):
            assert trained.weights["weight"].tolist() == [[-0.5]]
            assert trained.weights["bias"].tolist() == [-0.125]


def quarter(update: int) -> float:
    """A constant factor."""
    del update
    return 0.25
