"""What the author of an adapter provides so that the suites can test it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, FrozenSet, Mapping, Optional, Protocol, Sequence, Tuple

import numpy as np


@dataclass(frozen=True)
class Model:
    """A native model, and where its tensors are.

    Args:
        native: What ``session.compile`` takes.
        names: Canonical name (``"weight"``, ``"bias"``, ...) to the framework's own.
        transposed: Canonical names of matrices that the framework keeps as ``[out, in]``.
    """

    native: Any
    names: Mapping[str, str]
    transposed: FrozenSet[str] = field(default_factory=frozenset)

    def canonical(self, native: Mapping[str, Any]) -> Dict[str, Any]:
        """Rename tensors read from the framework; matrices become ``[in, out]``."""
        return {
            name: np.array(native[own].T if name in self.transposed else native[own])
            for name, own in self.names.items()
        }

    def to_native(self, canonical: Mapping[str, Any]) -> Dict[str, Any]:
        """Rename tensors for the framework, the inverse of ``canonical``."""
        return {
            self.names[name]: np.array(
                np.asarray(value).T if name in self.transposed else value, order="C"
            )
            for name, value in canonical.items()
        }


class Subject(Protocol):
    """Small models, losses and objectives in one framework; stateless, and rebuilt by pickle.

    The class must lie at the top of a module that other processes can import, and which imports
    the framework only when a model is made. Each model starts with the weights it is given, float32
    or float64 by ``dtype``, and computes in that type; one of float32 that is built inside
    ``session.scope()`` and compiled with ``precision.compute`` in half precision, in that.

    Optional class attributes: ``device_dtype``, the float type that its device computes in, float64
    without it; ``device_limits``, tests (shell patterns) that its device does not hold, each with
    the reason, beside those of ``EVERY_DEVICE``: without it the kit refuses device targets, ``{}``
    says that there are none; ``preload``, modules that warm ranks import first; ``threads``, True
    if ranks may be threads of one process; ``tolerance_native``, see ``OptimizerSuite``.

    Where ``device_dtype`` is not float64, models and ``cross_entropy`` are asked for in that type
    on devices, by an argument ``dtype`` that all these methods then must take. Optional is also a
    method ``on_device(native, options)``: it returns the model and the options of ``compile`` as
    users of the device must write them.
    """

    adapter: str
    """Name of the entry point in the group ``unified_ipu.adapters``."""

    def linear(self, weight: Any, bias: Optional[Any] = None, *, dtype: str = "float64") -> Model:
        """``x @ weight + bias``; ``weight`` ``[in, out]``, ``bias`` ``[out]`` or none.

        Canonical names: ``weight``, and ``bias`` if there is one. Without ``bias`` there must be
        nothing else that is trained.
        """
        ...

    def mlp(
        self, weights: Sequence[Any], biases: Sequence[Any], *, dtype: str = "float64"
    ) -> Model:
        """Linear layers with tanh between; canonical names ``weight.0``, ``bias.0``, ...."""
        ...

    def branches(self, a: float, b: float, c: float, frozen: float) -> Model:
        """Four float64 parameters of shape ``[1]``, of which a micro-batch uses two.

        ``x`` is ``[rows, 2]``: a value, and 0 for ``a`` or 1 for ``b``, the same in all rows. The
        output ``[rows, 1]`` is ``value * (a or b) + frozen``; ``c`` is never used, and none of
        the calculation may touch the parameter that is not chosen.
        """
        ...

    def dropout_probe(self, size: int, rate: float) -> Model:
        """``dropout(x) @ weight``: ``weight`` ``[size, 1]`` float64, at first 0.

        Its gradient is the mask. Gated by ``RANDOM_LAYERS``.
        """
        ...

    def normalised(self) -> Model:
        """Batch normalisation of one float64 feature, times ``weight`` ``[1, 1]``, at first 1.

        Its running statistics are buffers and follow the framework's own rule. Canonical names:
        ``weight``, ``mean`` and ``variance``, the buffers with one element each. Gated by
        ``BUFFERS``.
        """
        ...

    def tied(self, weight: float) -> Model:
        """``x * weight * weight``: one float64 parameter ``[1]`` under two names.

        Canonical names: ``weight``, and ``twin``, which shares its memory. Gated by
        ``SHARED_PARAMETERS``.
        """
        ...

    def mean_squared_error(self, reduction: str = "mean") -> Any:
        """The framework's own loss; its mean is over all elements, a unit an element or a row."""
        ...

    def cross_entropy(
        self,
        class_weights: Optional[Sequence[float]] = None,
        ignore_index: int = -100,
        reduction: str = "mean",
    ) -> Any:
        """The framework's own loss of logits ``[rows, classes]`` and class indices ``[rows]``.

        Its mean is over the class weights of targets that are not ``ignore_index``.
        """
        ...

    def product_loss(self, reduction: str = "mean") -> Any:
        """A callable of the user's: ``outputs * targets`` summed over axis 1.

        The framework knows nothing of its denominator, and it has no attribute ``reduction``:
        ``"mean"`` and ``"sum"`` over the rows return one number, ``"none"`` a value a row.
        """
        ...

    def token_objective(self, penalty: float = 0.0) -> Any:
        """An objective over a model of ``linear`` with one weight ``[1, 1]``.

        The batch is ``{"x": [rows, tokens], "mask": [rows, tokens]}``. W is the sum of ``mask``, S
        the sum of ``mask * (x * weight)`` plus ``W * penalty * weight ** 2``. Its one metric is
        ``"x"``: ``(sum of mask * x, W)``.
        """
        ...

    def native_optimizer(self, model: Model, settings: Any, rates: Mapping[str, float]) -> Any:
        """The framework's optimizer of the kind and settings of a ``ui.optim`` value.

        Of ``rates``, canonical name to learning rate, each item is a parameter group; where
        ``PARAMETER_GROUPS`` is not declared they are all equal. Gated by ``NATIVE_OPTIMIZERS``.
        """
        ...

    def native_schedule(self, optimizer: Any, factor: float) -> Any:
        """The framework's scheduler: each step multiplies all rates of ``optimizer`` by ``factor``.

        Gated by ``NATIVE_SCHEDULES``.
        """
        ...

    def tensors(self, tree: Any) -> Any:
        """Native tensors of the arrays in a tuple, list or dict: what users pass to ``step``."""
        ...

    def read(self, model: Model) -> Dict[str, Any]:
        """Read the user's own model, without our help: ``{native name: numpy array}``."""
        ...

    def random_state(self) -> Tuple[bytes, ...]:
        """State of the framework's global random generators; empty if it has none."""
        ...
