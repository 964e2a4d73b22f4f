"""Ways to get the engine wrong that are in use elsewhere; each must be killed by a law test.

A mutant patches the engine inside its context. ``killer`` is the test function of
``tests/laws/test_update_law.py`` that must fail then, ``conformance`` the test of the kit.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Callable, Iterator, Optional, Tuple
from unittest import mock

import numpy as np

from unified_ipu.data.schedule import Schedule
from unified_ipu.engine import gradients, host
from unified_ipu.engine.learning_rate import LearningRateFactor

Patch = Callable[[], Any]


@dataclass(frozen=True)
class Mutant:
    """One broken engine.

    Args:
        name: What it does wrong.
        patch: Makes a context in which the engine is broken.
        killer: Name of the law test that must notice.
        conformance: Suite of the kit, and its test that must notice too, named after a clause.
    """

    name: str
    patch: Patch
    killer: str
    conformance: Tuple[str, str]


def _wrapped(owner: Any, name: str, make: Callable[[Any], Any]) -> Any:
    return mock.patch.object(owner, name, make(getattr(owner, name)))


def divide_by_accumulation() -> Any:
    def make(original: Any) -> Any:
        def factor(self: Any, weight: float, scale: float) -> Optional[float]:
            found: Optional[float] = original(self, weight, scale)
            return None if found is None else found / 2

        return factor

    return _wrapped(gradients._Shared, "factor", make)


@contextmanager
def average_ranks() -> Iterator[None]:
    """Each rank divides by its own W, then the ranks are averaged."""

    def make_finish(original: Any) -> Any:
        def finish(self: Any, update: Any, tally: Any, **rest: Any) -> Any:
            if tally.weight:
                for bucket in self._reducer.gradients:
                    np.multiply(bucket, 1.0 / tally.weight, out=bucket)
            return original(self, update, tally, **rest)

        return finish

    def divide(self: Any, header: Any) -> Optional[float]:
        if not header[0] > 0:
            return None
        return self.rules.reference_weight / self._communicator.size

    with _wrapped(gradients._ReducedPath, "finish", make_finish):
        with mock.patch.object(gradients._ReducedPath, "_divide", divide):
            yield


@contextmanager
def clip_before_the_reduction() -> Iterator[None]:
    def make(original: Any) -> Any:
        def finish(self: Any, update: Any, tally: Any, **rest: Any) -> Any:
            limit = self.rules.clip_norm
            if limit is not None and tally.weight:
                total = sum(float(np.dot(bucket, bucket)) for bucket in self._reducer.gradients)
                norm = np.sqrt(total) * self.rules.reference_weight / tally.weight
                for bucket in self._reducer.gradients:
                    np.multiply(bucket, min(1.0, limit / norm) if norm else 1.0, out=bucket)
            self.rules = replace(self.rules, clip_norm=None)
            return original(self, update, tally, **rest)

        return finish

    with _wrapped(gradients._ReducedPath, "finish", make):
        yield


def step_the_schedule_per_micro_batch() -> Any:
    def make(original: Any) -> Any:
        def factor(self: Any, update: int) -> Any:
            return original(self, 2 * update)

        return factor

    return _wrapped(LearningRateFactor, "__call__", make)


def step_although_nothing_counts() -> Any:
    def make(original: Any) -> Any:
        def factor(self: Any, weight: float, scale: float) -> Any:
            return 1.0 if weight == 0.0 else original(self, weight, scale)

        return factor

    return _wrapped(gradients._Shared, "factor", make)


def divide_the_tail_by_the_full_batch() -> Any:
    def make(original: Any) -> Any:
        def factor(self: Any, weight: float, scale: float) -> Any:
            return original(self, float(self.rules.global_batch_size) if weight else 0.0, scale)

        return factor

    return _wrapped(gradients._Shared, "factor", make)


@contextmanager
def count_padding() -> Iterator[None]:
    def make(original: Any) -> Any:
        def run(self: Any, path: Any, update: Any, lr_factor: float) -> Any:
            micro_batches = [replace(m, sample_weight=None) for m in update.micro_batches]
            rows = update.samples + sum(
                int(np.count_nonzero(m.ids < 0)) for m in micro_batches if m.ids is not None
            )
            changed = replace(update, micro_batches=micro_batches, samples=-1 if rows else 0)
            return original(self, path, changed, lr_factor)

        return run

    with _wrapped(host.HostExecutor, "_run_update", make):
        yield


def leave_the_epoch_out_of_the_key() -> Any:
    def make(original: Any) -> Any:
        def order(self: Any, epoch: int) -> Any:
            del epoch
            return original(self, 0)

        return order

    return _wrapped(Schedule, "order", make)


def decide_about_overflow_locally() -> Any:
    def make(original: Any) -> Any:
        def finish(self: Any, *arguments: Any, **rest: Any) -> Any:
            outcome = original(self, *arguments, **rest)
            bad = outcome.non_finite
            if bad is not None and self._communicator.rank not in bad.ranks:
                return outcome._replace(non_finite=None, happened=True)
            return outcome

        return finish

    return _wrapped(gradients._ReducedPath, "finish", make)


@contextmanager
def key_random_numbers_by_rank() -> Iterator[None]:
    def make(original: Any) -> Any:
        def run(self: Any, path: Any, update: Any, lr_factor: float) -> Any:
            rank, size = self._communicator.rank, self._communicator.size
            keyed = [
                replace(micro, index=1000 * rank + micro.index // size)
                for micro in update.micro_batches
            ]
            return original(self, path, replace(update, micro_batches=keyed), lr_factor)

        return run

    with _wrapped(host.HostExecutor, "_run_update", make):
        yield


MUTANTS = (
    Mutant(
        "divide by the number of micro-batches",
        divide_by_accumulation,
        "test_l1_every_split_of_16_samples_gives_the_gradient_187",
        (
            "UpdateLawSuite",
            "test_l1_3_each_way_to_build_a_global_batch_gives_one_update[mean-0.001-187.0-0.813]",
        ),
    ),
    Mutant(
        "average the ranks' means",
        average_ranks,
        "test_l1_replicas_with_unequal_batches_count_by_samples",
        ("UpdateLawSuite", "test_l1_3_replicas_with_unequal_batches_form_one_mean"),
    ),
    Mutant(
        "clip before the reduction",
        clip_before_the_reduction,
        "test_l1_clipping_comes_after_the_reduction",
        ("UpdateLawSuite", "test_l1_8_clipping_comes_once_after_the_reduction[2-mean]"),
    ),
    Mutant(
        "step the schedule per micro-batch",
        step_the_schedule_per_micro_batch,
        "test_l2_the_schedule_steps_once_an_update",
        ("ScheduleSuite", "test_l2_11_the_schedule_moves_once_an_update[1]"),
    ),
    Mutant(
        "step although W is 0",
        step_although_nothing_counts,
        "test_l1_an_update_whose_weight_is_0_does_not_happen",
        ("UpdateDecisionSuite", "test_l1_6_nothing_happens_when_nothing_counts"),
    ),
    Mutant(
        "divide the tail by the full batch",
        divide_the_tail_by_the_full_batch,
        "test_l1_the_short_last_update_is_divided_by_what_is_in_it",
        ("UpdateLawSuite", "test_l1_3_a_short_last_group_is_divided_by_its_own_weight[1]"),
    ),
    Mutant(
        "count padding",
        count_padding,
        "test_l1_padding_counts_for_nothing",
        ("DataLawSuite", "test_l2_9_padding_is_counted_and_does_not_count[1]"),
    ),
    Mutant(
        "leave the epoch out of the key",
        leave_the_epoch_out_of_the_key,
        "test_l2_epochs_have_orders_of_their_own_and_repeat_in_a_new_run",
        ("DataLawSuite", "test_l2_2_epochs_differ_and_a_new_run_repeats_them"),
    ),
    Mutant(
        "decide about overflow on each rank alone",
        decide_about_overflow_locally,
        "test_l1_a_gradient_that_is_not_finite_on_one_rank_is_an_error_on_all",
        (
            "UpdateDecisionSuite",
            "test_l1_7_a_gradient_that_is_not_finite_ends_all_ranks_alike[inf]",
        ),
    ),
    Mutant(
        "key random numbers by rank",
        key_random_numbers_by_rank,
        "test_l3_masks_depend_on_the_micro_batch_and_not_on_the_rank",
        ("RandomNumbersSuite", "test_l3_2_masks_do_not_depend_on_the_world"),
    ),
)
