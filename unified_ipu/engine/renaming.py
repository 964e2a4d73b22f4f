"""A replica under canonical names: ``compile(names=)``, and worlds of several frameworks.

Outside, every tensor has its canonical name and axes, and tensors come sorted by name, so that
replicas of different frameworks describe the same model in the same words. Inside, the adapter goes
on in its own. Gradients lie in the buckets with canonical axes only where the ranks' own differ;
elsewhere the adapter's layout is the layout, since transposing costs a pass over the gradients.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Collection, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from unified_ipu.adapter import (
    Buffer,
    CanonicalTensor,
    Kernels,
    Metric,
    MicroBatch,
    Replica,
    Slot,
    Tally,
    TensorSpec,
    Tree,
    canonical_tensors,
)
from unified_ipu.engine.host import trained_tensors
from unified_ipu.errors import ConfigError


class RenamedReplica:
    """A replica whose tensors have canonical names, sorted; the rest is the replica's own.

    Args:
        replica: Under its own names. Its tensors must exist.
        names: As ``compile`` was given them; empty to sort only.

    Raises:
        ConfigError: If the names do not fit the replica's tensors.
    """

    def __init__(self, replica: Replica, names: Mapping[str, Any]) -> None:
        self._replica = replica
        specs = replica.tensors()
        if not specs:
            raise ConfigError(
                "the model has no tensors yet, so names= and ranks of several frameworks cannot be "
                "checked; build it, or call it once, before compile"
            )
        self._map: Dict[str, CanonicalTensor] = canonical_tensors(names, specs)
        self._native = {entry.name: native for native, entry in self._map.items()}
        self._shapes = {spec.name: spec.shape for spec in specs if spec.role != "slot"}
        self._private: Collection[str] = ()
        # Trained tensors: the native index of each canonical one, and the other way.
        order = [self._map[spec.name].name for spec in trained_tensors(specs)]
        self._to_canonical = sorted(range(len(order)), key=order.__getitem__)
        self._to_native = [self._to_canonical.index(index) for index in range(len(order))]
        self.is_transposed = False
        """Whether gradients are reduced with canonical axes; decided before ``bind``."""
        self.counts_samples = replica.counts_samples
        self.holds_collectives = bool(getattr(replica, "holds_collectives", False))
        self.kernels: Optional[Kernels] = getattr(replica, "kernels", None)

    @property
    def axes(self) -> Dict[str, Optional[List[int]]]:
        """Permutation of each trained tensor by canonical name, as JSON values."""
        found: Dict[str, Optional[List[int]]] = {}
        for spec in trained_tensors(self._replica.tensors()):
            entry = self._map[spec.name]
            found[entry.name] = None if entry.permutation is None else list(entry.permutation)
        return found

    def keep_private(self, names: Collection[str]) -> None:
        """Take these buffers, by canonical name, for this rank's own: other ranks have none."""
        self._private = frozenset(names)

    def tensors(self) -> List[TensorSpec]:
        """As ``Replica.tensors``, in canonical names and shapes; each role sorted by name."""
        specs = [self._canonical_spec(spec) for spec in self._replica.tensors()]
        rank = {"parameter": 0, "buffer": 1, "slot": 2}
        return sorted(specs, key=lambda spec: (rank[spec.role], spec.name))

    def _canonical_spec(self, spec: TensorSpec) -> TensorSpec:
        if spec.role == "slot":
            owner, _, slot = spec.name.rpartition("/")
            entry = self._map[owner]
            is_like_owner = tuple(spec.shape) == tuple(self._shapes[owner])
            shape = entry.shape(spec.shape) if is_like_owner else spec.shape
            return replace(spec, name=f"{entry.name}/{slot}", shape=shape)
        entry = self._map[spec.name]
        return replace(
            spec,
            name=entry.name,
            shape=entry.shape(spec.shape),
            tied_to=None if spec.tied_to is None else self._map[spec.tied_to].name,
            sync="none" if entry.name in self._private else spec.sync,
        )

    def bind(self, slots: Sequence[Slot], gradients: Sequence[Buffer]) -> None:
        """As ``Replica.bind``; the replica gets its own names, and axes only if they differ."""
        found = []
        for index in self._to_native:
            slot = slots[index]
            native = self._native[slot.name]
            if self.is_transposed:
                permutation = self._map[native].permutation
                found.append(replace(slot, name=native, permutation=permutation))
            else:
                found.append(replace(slot, name=native, shape=tuple(self._shapes[native])))
        self._replica.bind(found, gradients)

    def begin_update(self) -> None:
        """As ``Replica.begin_update``."""
        self._replica.begin_update()

    def forward_backward(
        self, micro: MicroBatch, *, scale: float, seed: int, ready: Callable[[int], None]
    ) -> None:
        """As ``Replica.forward_backward``."""
        self._replica.forward_backward(micro, scale=scale, seed=seed, ready=ready)

    def finish_update(self) -> Tally:
        """As ``Replica.finish_update``, the flags in canonical order."""
        tally = self._replica.finish_update()
        return replace(tally, used=[tally.used[index] for index in self._to_canonical])

    def squared_norm(self) -> float:
        """As ``Replica.squared_norm``."""
        return self._replica.squared_norm()

    def non_finite(self) -> Sequence[str]:
        """As ``Replica.non_finite``, in canonical names."""
        return [self._map[name].name for name in self._replica.non_finite()]

    def apply(
        self,
        *,
        lr_factor: float,
        used: Sequence[bool],
        scale: float = 1.0,
        owned: Optional[Sequence[bool]] = None,
    ) -> None:
        """As ``Replica.apply``, with flags in canonical order."""
        self._replica.apply(
            lr_factor=lr_factor,
            used=[used[index] for index in self._to_native],
            scale=scale,
            owned=None if owned is None else [owned[index] for index in self._to_native],
        )

    def end_call(self, num_updates: int) -> None:
        """As ``Replica.end_call``."""
        self._replica.end_call(num_updates)

    def learning_rates(self) -> Sequence[float]:
        """As ``Replica.learning_rates``."""
        return self._replica.learning_rates()

    def evaluate(
        self, micro: MicroBatch, metrics: Mapping[str, Metric], *, seed: int
    ) -> Dict[str, Tuple[float, float]]:
        """As ``Replica.evaluate``."""
        return self._replica.evaluate(micro, metrics, seed=seed)

    def predict(self, micro: MicroBatch, *, seed: int) -> Tree:
        """As ``Replica.predict``."""
        return self._replica.predict(micro, seed=seed)

    def read(self, names: Sequence[str]) -> Dict[str, Any]:
        """As ``Replica.read``, with canonical names and axes."""
        native = {self._native_name(name): name for name in names}
        values = self._replica.read(list(native))
        return {
            name: np.asarray(self._turned(own, values[own], to_canonical=True), order="C")
            for own, name in native.items()
        }

    def write(self, tensors: Mapping[str, Any]) -> None:
        """As ``Replica.write``, with canonical names and axes."""
        found: Dict[str, Any] = {}
        for name, value in tensors.items():
            own = self._native_name(name)
            turned = self._turned(own, np.asarray(value), to_canonical=False)
            found[own] = np.asarray(turned, order="C")
        self._replica.write(found)

    def _native_name(self, name: str) -> str:
        if name in self._native:
            return self._native[name]
        owner, _, slot = name.rpartition("/")
        if owner in self._native:
            return f"{self._native[owner]}/{slot}"
        raise ConfigError(f"there is no tensor {name!r}; known: {sorted(self._native)}")

    def _turned(self, native: str, value: np.ndarray, *, to_canonical: bool) -> np.ndarray:
        owner = native if native in self._map else native.rpartition("/")[0]
        entry = self._map[owner]
        axes = entry.permutation if to_canonical else entry.inverse
        own = self._shapes[owner]
        wanted = tuple(own) if to_canonical else entry.shape(own)
        # Counters of an optimizer and the like have no axes of their parameter.
        return value if axes is None or value.shape != wanted else value.transpose(axes)

    def scalars(self) -> Dict[str, Any]:
        """As ``Replica.scalars``: the names inside are the replica's own."""
        return self._replica.scalars()

    def load_scalars(self, scalars: Mapping[str, Any]) -> None:
        """As ``Replica.load_scalars``."""
        self._replica.load_scalars(scalars)

    def forget_slots(self) -> None:
        """As ``Replica.forget_slots``."""
        self._replica.forget_slots()

    def hand_back(self) -> None:
        """As ``hand_back`` of the replica, if it has one."""
        hand_back = getattr(self._replica, "hand_back", None)
        if hand_back is not None:
            hand_back()

    def export_onnx(self, path: Path) -> None:
        """As ``export_onnx`` of the replica: the file has the model's own names.

        Raises:
            ConfigError: If it has none.
        """
        export = getattr(self._replica, "export_onnx", None)
        if export is None:
            raise ConfigError("the replica of this model has no export_onnx")
        export(path)

    def close(self) -> None:
        """As ``Replica.close``."""
        self._replica.close()
