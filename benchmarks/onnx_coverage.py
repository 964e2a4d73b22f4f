"""What the ONNX adapter computes right, on suites that come inside the onnx package.

A case is a model with inputs and expected outputs. It is *native* if torch functions give the
expected outputs, *by reference* if some node needed the reference evaluator (no gradients there),
*refused* if building says which nodes are not supported, *random* if the outputs are drawn and only
elements that were kept in both can be compared, and *wrong* otherwise. Nothing may be wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, List, Sequence, Tuple

import numpy as np
import onnx
import torch
from onnx import ModelProto, TensorProto, numpy_helper

from unified_ipu.errors import CapabilityError
from unified_ipu_onnx.module import GraphModule
from unified_ipu_onnx.tensors import to_torch

DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"
FLOATS = frozenset(
    {TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16}
)
# Two units in the last place, which the suite itself gives bfloat16: sums of its 16 bit cases were
# rounded at every step, torch's are rounded once.
ROUNDING = {"torch.bfloat16": 2.0**-6, "torch.float16": 2.0**-9}
# Sums of 100 that cancel to 0 are expected to 1e-7; numpy took them in double precision.
CANCELLED = {"test_dft_inverse": 1e-5, "test_dft_inverse_opset19": 1e-5}
# Least shares of the node cases with float inputs and outputs.
NATIVE_BAR, ANY_BAR = 0.85, 0.95


class Outcome(str, Enum):
    """What became of a case."""

    NATIVE = "native"
    REFERENCE = "by reference"
    REFUSED = "refused"
    RANDOM = "random"
    WRONG = "wrong"


@dataclass(frozen=True)
class Case:
    """A model, what goes in and what has to come out.

    Args:
        name: As the suite calls it.
        model: Without data in other files.
        data: Pairs of inputs and outputs, each in the order of the graph; numpy arrays or, from
            files, protos.
        rtol: Relative tolerance that the suite asks for.
        atol: Absolute tolerance.
    """

    name: str
    model: ModelProto
    data: Tuple[Tuple[Sequence[Any], Sequence[Any]], ...]
    rtol: float = 1e-3
    atol: float = 1e-7

    @property
    def is_training(self) -> bool:
        """Whether it asks for batch statistics or masks."""
        return "training" in self.name

    @property
    def is_random(self) -> bool:
        """Whether it draws numbers, by a generator that the standard leaves open."""
        masked = self.name.startswith("test_training_dropout") and "zero_ratio" not in self.name
        return masked or self.name.startswith("test_bernoulli")

    @property
    def has_floats(self) -> bool:
        """Whether a float of 16 bits or more goes in and one comes out."""
        graph = self.model.graph
        return all(
            any(value.type.tensor_type.elem_type in FLOATS for value in side)
            for side in (graph.input, graph.output)
        )


@dataclass
class Tally:
    """Outcomes of a suite.

    Attributes:
        outcomes: Of each case, by its name.
        notes: What was refused or wrong, by the name of the case.
    """

    outcomes: Dict[str, Outcome] = field(default_factory=dict)
    notes: Dict[str, str] = field(default_factory=dict)

    def count(self, *outcomes: Outcome) -> int:
        """Return how many cases came out so."""
        return sum(outcome in outcomes for outcome in self.outcomes.values())

    def named(self, outcome: Outcome) -> List[str]:
        """Return the cases that came out so, sorted."""
        return sorted(name for name, found in self.outcomes.items() if found is outcome)

    def of(self, cases: Iterable[str]) -> Tally:
        """Return the part that these cases make up."""
        names = [name for name in cases if name in self.outcomes]
        notes = {name: self.notes[name] for name in names if name in self.notes}
        return Tally({name: self.outcomes[name] for name in names}, notes)


def tensor(value: Any) -> Any:
    """Return a numpy array or a proto of a suite as the adapter reads it from a file.

    Raises:
        CapabilityError: If it is of an element type that torch has not, or an empty optional.
    """
    if isinstance(value, list):
        return [tensor(item) for item in value]
    if isinstance(value, TensorProto):
        return to_torch(value)
    if not isinstance(value, (np.ndarray, np.generic)):
        raise CapabilityError("onnx", f"a {type(value).__name__} is no tensor")
    return to_torch(numpy_helper.from_array(np.asarray(value)))


def difference(found: Any, expected: Any, case: Case) -> str:
    """Return what differs, or an empty string."""
    if isinstance(expected, list) or isinstance(found, list):
        if not (isinstance(expected, list) and isinstance(found, list)):
            return "a sequence and a tensor"
        if len(found) != len(expected):
            return f"{len(found)} elements, expected {len(expected)}"
        return next(filter(None, (difference(a, b, case) for a, b in zip(found, expected))), "")
    if found.dtype != expected.dtype or found.shape != expected.shape:
        ours, theirs = (f"{value.dtype} {list(value.shape)}" for value in (found, expected))
        return f"{ours}, expected {theirs}"
    if case.is_random:
        # Other elements are kept, but what is kept has the same value.
        kept = (found != 0) & (expected != 0)
        found, expected = found[kept], expected[kept]
    if not (found.is_floating_point() or found.is_complex()):
        return "" if torch.equal(found, expected) else "integers differ"
    rtol = max(case.rtol, ROUNDING.get(str(found.dtype), 0.0))
    atol = CANCELLED.get(case.name, case.atol)
    wide = torch.complex128 if found.is_complex() else torch.float64
    a, b = found.detach().to(wide).numpy(), expected.to(wide).numpy()
    if np.allclose(a, b, rtol=rtol, atol=atol, equal_nan=True):
        return ""
    return f"differs by {np.nanmax(np.abs(a - b)):.3g}"


def run(case: Case) -> Tuple[Outcome, str]:
    """Return what becomes of a case, and what was refused or wrong."""
    try:
        module = GraphModule.from_model(case.model).train(case.is_training)
        data = [tuple([tensor(v) for v in side] for side in pair) for pair in case.data]
    except CapabilityError as error:
        return Outcome.REFUSED, str(error)
    for inputs, expected in data:
        try:
            with torch.no_grad():
                result = module(*inputs)
        except Exception as error:  # noqa: BLE001  # whatever it is, the case is wrong
            return Outcome.WRONG, f"{type(error).__name__}: {error}"
        found = list(result.values()) if isinstance(result, dict) else [result]
        what = difference(found, list(expected), case)
        if what:
            return Outcome.WRONG, what
    if case.is_random:
        return Outcome.RANDOM, ""
    return (Outcome.REFERENCE if module.fallbacks else Outcome.NATIVE), ""


def tally(cases: Iterable[Case]) -> Tally:
    """Run cases one after another."""
    found = Tally()
    for case in cases:
        outcome, note = run(case)
        found.outcomes[case.name] = outcome
        if note:
            found.notes[case.name] = note
    return found


def converted() -> Iterator[Case]:
    """Yield small models that PyTorch exported, of old operator sets."""
    return _folders("pytorch-converted")


def operators() -> Iterator[Case]:
    """Yield single operators that PyTorch exported, of old operator sets."""
    return _folders("pytorch-operator")


def _folders(suite: str) -> Iterator[Case]:
    for folder in sorted((DATA / suite).iterdir()):
        sets = sorted(folder.glob("test_data_set_*"))
        data = [(_protos(given, "input"), _protos(given, "output")) for given in sets]
        model = onnx.load(str(folder / "model.onnx"))
        yield Case(folder.name, model, tuple(data))


def _protos(folder: Path, kind: str) -> List[TensorProto]:
    count = len(list(folder.glob(f"{kind}_*.pb")))
    return [_proto(folder / f"{kind}_{index}.pb") for index in range(count)]


def _proto(path: Path) -> TensorProto:
    proto = TensorProto()
    proto.ParseFromString(path.read_bytes())
    return proto


def light() -> Iterator[Case]:
    """Yield nine published image models, whose weights are made by nodes and equal."""
    folder = DATA / "light"
    for path in sorted(folder.glob("light_*.onnx")):
        model = onnx.load(str(path))
        held = {initializer.name for initializer in model.graph.initializer}
        (value,) = (value for value in model.graph.input if value.name not in held)
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        # The suite's own input: a ramp over the whole tensor.
        ramp = np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape) / np.prod(shape)
        expected = _proto(folder / f"{path.stem}_output_0.pb")
        yield Case(path.stem, model, (([ramp.astype(np.float32)], [expected]),))


_NODES: List[Case] = []


def nodes() -> Iterator[Case]:
    """Yield the cases of every operator of the standard; making them takes 10 to 20 s once."""
    if not _NODES:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the expected outputs overflow on purpose
            import onnx.backend.test.case.node as cases

            for case in cases.collect_testcases(None):
                # The package's types allow None, for cases that are files.
                model: Any = case.model
                sets: Any = case.data_sets
                data = tuple((tuple(given), tuple(wanted)) for given, wanted in sets)
                _NODES.append(Case(case.name, model, data, case.rtol, case.atol))
    return iter(_NODES)


def is_loss(case: Case) -> bool:
    """Whether it is of softmax cross entropy or negative log likelihood."""
    return case.name.startswith(("test_sce", "test_nllloss"))


WHOLE = ("pytorch-converted", "pytorch-operator", "light", "losses")  # where all must be native
FLOATS_IN_AND_OUT = "nodes, floats in and out"


def results() -> Dict[str, Tally]:
    """Run every suite, each case once."""
    everything = tally(nodes())
    return {
        "pytorch-converted": tally(converted()),
        "pytorch-operator": tally(operators()),
        "light": tally(light()),
        "losses": everything.of(case.name for case in nodes() if is_loss(case)),
        FLOATS_IN_AND_OUT: everything.of(case.name for case in nodes() if case.has_floats),
        "nodes, all": everything,
    }


def misses(found: Dict[str, Tally]) -> List[str]:
    """Say what is wrong or below its bar; nothing if all is well."""
    said: List[str] = []
    for suite, result in found.items():
        total, native = len(result.outcomes), result.count(Outcome.NATIVE)
        wrong = result.named(Outcome.WRONG)
        said.extend(f"{suite}: {case}: {result.notes[case]}" for case in wrong)
        if suite in WHOLE and native != total:
            said.append(f"{suite}: {native} of {total} native; all must be")
    result = found[FLOATS_IN_AND_OUT]
    total, native = len(result.outcomes), result.count(Outcome.NATIVE)
    right = native + result.count(Outcome.REFERENCE)
    if native < NATIVE_BAR * total or right < ANY_BAR * total:
        said.append(
            f"{FLOATS_IN_AND_OUT}: {native} of {total} native and {right} right; expected "
            f"{NATIVE_BAR:.0%} and {ANY_BAR:.0%}"
        )
    return said


def main(arguments: Sequence[str]) -> int:
    """Print a line for each suite; the exit status is 1 if anything is wrong or below its bar."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the counts to this file")
    parser.add_argument("--refused", action="store_true", help="say why cases are refused")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    found = results()
    for suite, result in found.items():
        total, native = len(result.outcomes), result.count(Outcome.NATIVE)
        counts = ", ".join(f"{result.count(kind)} {kind.value}" for kind in list(Outcome)[1:])
        print(f"{suite:26} {native} of {total} native ({native / total:.1%}); {counts}")
    print("by reference: right, computed by the reference evaluator of ONNX, not differentiable")
    print("refused: by name when the graph is built; random: only what both drew is compared")
    said = misses(found)
    print(f"wrong: {sum(result.count(Outcome.WRONG) for result in found.values())}")
    print("\n".join(said), end="\n" if said else "")
    if options.refused:
        everything = found["nodes, all"]
        for case in everything.named(Outcome.REFUSED):
            print(f"{case}: {everything.notes[case]}")
    if options.json:
        rows = [
            {
                "suite": suite,
                "cases": len(result.outcomes),
                **{kind.value: result.count(kind) for kind in Outcome},
            }
            for suite, result in found.items()
        ]
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return int(bool(said))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
