"""Updates of PopART's optimizers against its formulas in float64, and what a new one may change."""

from __future__ import annotations

import numpy as np
import pytest

from tests.adapters.unified_ipu_onnx.emulated.sessions import Linear, accumulating, read
from unified_ipu_onnx.emulated import popart

SEPARATE = popart.SGDAccumulatorAndMomentum.Separate
COMBINED = popart.SGDAccumulatorAndMomentum.Combined
GRADIENTS = [9.0, 1.0, 4.0, 25.0]
NUMBERS = [3.0, 1.0, 2.0, 5.0]


def trained(optimizer, start=2.0, **options):
    model = Linear(1, start=start)
    session = model.session(updates=4, optimizer=optimizer, **options)
    model.run(session, NUMBERS)
    return model, session


def by_formula(*, lr, wd=0.0, mm=0.0, dm=0.0, nesterov=False, start=2.0):
    weight, velocity = start, 0.0
    for gradient in GRADIENTS:
        decayed = gradient + wd * weight
        velocity = mm * velocity + (1 - dm) * decayed
        weight -= lr * ((decayed + mm * velocity) if nesterov else velocity)
    return weight, velocity


@pytest.mark.parametrize("kind", [SEPARATE, COMBINED])
@pytest.mark.parametrize("nesterov", [0.0, 1.0])
@pytest.mark.parametrize("scaling", [1.0, 16.0])
def test_momentum_damps_the_first_velocity_too(kind, nesterov, scaling):
    values = {
        "defaultLearningRate": (0.01, False),
        "defaultWeightDecay": (0.1, False),
        "defaultMomentum": (0.9, True),
        "defaultDampening": (0.25, False),
        "defaultVelocityScaling": (scaling, True),
        "nesterov": (nesterov, True),
        "lossScaling": (4.0, False),
    }
    model, session = trained(popart.SGD(values, accumulatorAndMomentum=kind))
    expected, velocity = by_formula(lr=0.01, wd=0.1, mm=0.9, dm=0.25, nesterov=bool(nesterov))
    assert model.weight(session) == pytest.approx(expected, rel=1e-5)
    if kind is SEPARATE:
        found = read(session, Accl1___w=[1, 1])["Accl1___w"].item()
        assert found == pytest.approx(velocity * scaling, rel=1e-5)
    else:  # decay and momentum of the next update are in it
        rest = 0.9 * velocity + 0.75 * 0.1 * expected
        found = read(session, Accl___w=[1, 1])["Accl___w"].item()
        assert found == pytest.approx(rest * scaling, rel=1e-5)


def test_constant_momentum_of_zero_keeps_no_velocity():
    model, session = trained(popart.ConstSGD(0.5, weight_decay=0.1))
    assert model.weight(session) == pytest.approx(by_formula(lr=0.5, wd=0.1)[0], rel=1e-5)
    assert read(session, Accl1___w=[1, 1])["Accl1___w"].item() == 0.0


@pytest.mark.parametrize("mode", [popart.AdamMode.Adam, popart.AdamMode.AdamNoBias])
@pytest.mark.parametrize("decay", popart.WeightDecayMode)
def test_adam_adds_epsilon_behind_the_root(mode, decay):
    values = {
        "defaultLearningRate": (0.1, False),
        "defaultWeightDecay": (0.2, False),
        "defaultBeta1": (0.8, True),
        "defaultBeta2": (0.95, True),
        "defaultEps": (0.5, True),
    }
    model, session = trained(popart.Adam(values, mode=mode, weight_decay_mode=decay))
    weight, m, v = 2.0, 0.0, 0.0
    for t, gradient in enumerate(GRADIENTS, 1):
        is_decoupled = decay is popart.WeightDecayMode.Decay
        g = gradient if is_decoupled else gradient + 0.2 * weight
        m, v = 0.8 * m + 0.2 * g, 0.95 * v + 0.05 * g * g
        corrects = mode is popart.AdamMode.Adam
        mean, square = (m / (1 - 0.8**t), v / (1 - 0.95**t)) if corrects else (m, v)
        step = mean / (np.sqrt(square) + 0.5) + (0.2 * weight if is_decoupled else 0.0)
        weight -= 0.1 * step
    assert model.weight(session) == pytest.approx(weight, rel=1e-5)
    slots = read(session, Accl1___w=[1, 1], Accl2___w=[1, 1], Step___w=[])
    assert slots["Accl1___w"].item() == pytest.approx(m, rel=1e-5)
    assert slots["Accl2___w"].item() == pytest.approx(v, rel=1e-5)
    assert slots["Step___w"].item() == 4.0


def test_defaults_are_those_of_popart():
    adam = popart.Adam({})
    assert adam.of_weight("w") == {
        "learningRate": 0.1, "weightDecay": 0.0, "beta1": 0.9, "beta2": 0.999, "eps": 1e-6,
        "maxWeightNorm": 10.0, "lossScaling": 1.0,
    }  # fmt: skip
    assert popart.SGD({}).of_weight("w")["learningRate"] == 0.1


def test_a_weight_may_have_values_of_its_own():
    optimizer = popart.SGD({"defaultLearningRate": (1.0, False)})
    optimizer.insertSpecific("w", {"learningRate": (0.5, False)})
    model, session = trained(optimizer, start=0.0)
    assert model.weight(session) == -0.5 * sum(GRADIENTS)


def test_gradients_are_clipped_by_their_norm_after_accumulation():
    clip = popart.ClipNormSettings.clipAllWeights(6.0)
    optimizer = popart.SGD({"defaultLearningRate": (1.0, False)}, clip_norm_settings=[clip])
    model = Linear(1)
    session = model.session(updates=2, optimizer=optimizer, **accumulating(2))
    model.run(session, NUMBERS)  # 9 + 1 and 4 + 25
    assert model.weight(session) == -12.0
    small = popart.ClipNormSettings.clipWeights(["w"], 100.0)
    optimizer = popart.SGD({"defaultLearningRate": (1.0, False)}, clip_norm_settings=[small])
    session = model.session(updates=2, optimizer=optimizer, **accumulating(2))
    model.run(session, NUMBERS)
    assert model.weight(session) == -39.0


def test_clipping_a_velocity_is_refused():
    clip = popart.ClipNormSettings.clipAllWeights(6.0)
    momentum = {"defaultMomentum": (0.9, True)}
    with pytest.raises(popart.popart_exception, match="clips the velocity"):
        Linear(1).session(optimizer=popart.SGD(momentum, [clip]))


@pytest.mark.parametrize(
    ("values", "options", "words"),
    [
        ({"lossScaling": (2.0, True)}, {}, "with a loss scale"),
        (
            {},
            {
                "accumulationAndReplicationReductionType": popart.ReductionType.Mean,
                **accumulating(2),
            },
            "mean over micro-batches",
        ),
    ],
)
def test_clipping_of_gradients_that_are_not_divided_yet_is_refused(values, options, words):
    clip = popart.ClipNormSettings.clipAllWeights(6.0)
    with pytest.raises(popart.popart_exception, match=words):
        Linear(1).session(optimizer=popart.SGD(values, [clip]), **options)


def test_a_new_rate_holds_from_the_next_step_on():
    model = Linear(1)
    session = model.session(optimizer=popart.SGD({"defaultLearningRate": (1.0, False)}))
    model.run(session, [1])
    session.updateOptimizerFromHost(popart.SGD({"defaultLearningRate": (0.5, False)}))
    model.run(session, [1])
    assert model.weight(session) == -1.5


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (popart.ConstSGD(1.0), popart.ConstSGD(0.5), "compiled in as 1.0; got 0.5"),
        (
            popart.SGD({"defaultLearningRate": (1.0, False)}),
            popart.SGD({"defaultLearningRate": (1.0, True)}),
            "was constant: False",
        ),
        (popart.SGD({}), popart.Adam({}), "another kind"),
    ],
)
def test_what_was_compiled_in_cannot_change(old, new, words):
    session = Linear(1).session(optimizer=old)
    with pytest.raises(popart.popart_exception, match=words):
        session.updateOptimizerFromHost(new)


@pytest.mark.parametrize(
    "make",
    [
        lambda: popart.SGD({"learningRate": (0.1, False)}),
        lambda: popart.SGD({"defaultLearningRate": 0.1}),
        lambda: popart.Adam({}, mode=popart.AdamMode.Lamb),
        lambda: popart.Adam({}, scaled_optimizer_state=True),
        lambda: popart.Adaptive({}),
        lambda: popart.SGD({}, accumType=popart.DataType.INT32),
    ],
)
def test_values_and_modes_that_are_not_known_are_refused(make):
    with pytest.raises(popart.popart_exception):
        make()
