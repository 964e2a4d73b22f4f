from __future__ import annotations

import pytest

from unified_ipu.device import CallShape, Position, infer
from unified_ipu.errors import ConfigError


def test_the_replica_is_the_fastest_index_of_a_slice() -> None:
    shape = CallShape(iterations=2, accumulation=2, replicas=3)
    slices = [[p.slice for p in shape.update(d)] for d in range(2)]
    assert slices == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]
    assert list(shape.update(1))[4] == Position(iteration=1, step=1, replica=1, slice=10)


def test_an_update_consumes_neighbouring_rows_of_the_host() -> None:
    # D=2, R=3, A=4, B=2: the loader's batches of 48 rows; update 1 starts at row A*R*B = 24.
    shape = CallShape(iterations=2, accumulation=4, replicas=3)
    assert shape.slices == 24
    assert shape.micro_rows(48) == 2
    rows = sorted(p.slice * 2 for p in shape.update(1))
    assert (rows[0], rows[-1]) == (24, 46)


@pytest.mark.case("O-I1")
def test_training_takes_twelve_rows_and_inference_eight_and_knows_no_accumulation() -> None:
    training = CallShape(iterations=2, accumulation=3)
    assert training.micro_rows(12) == 2
    assert [sum(1 for _ in training.update(d)) for d in range(2)] == [3, 3]
    inference = CallShape(iterations=4)
    assert inference.micro_rows(8) == 2
    seen: list = []
    infer(inference, seen.append)
    assert [p.slice for p in seen] == [0, 1, 2, 3]


def test_rows_that_do_not_divide_into_slices_have_no_micro_batch() -> None:
    assert CallShape(iterations=2, accumulation=3).micro_rows(13) is None


def test_replicas_of_a_group_read_the_same_slice() -> None:
    shape = CallShape(iterations=1, replicas=4, group_size=2)
    assert shape.streams == 2
    assert [p.slice for p in shape.update(0)] == [0, 0, 1, 1]


@pytest.mark.parametrize("counts", [{"iterations": 0}, {"accumulation": -1}, {"replicas": True}])
def test_a_count_below_one_is_refused_by_name(counts: dict) -> None:
    with pytest.raises(ConfigError, match=next(iter(counts))):
        CallShape(**counts)


def test_groups_that_do_not_divide_the_replicas_are_refused() -> None:
    with pytest.raises(ConfigError, match="4 replicas do not divide into groups of 3"):
        CallShape(replicas=4, group_size=3)
