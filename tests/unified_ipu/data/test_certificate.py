"""Certificates: what is proved, and what a deviation looks like."""

from __future__ import annotations

import numpy as np
import pytest

from unified_ipu.data.certificate import add_up
from unified_ipu.data.receipts import Receipts, digest_of, digest_of_range
from unified_ipu.data.schedule import Portion
from unified_ipu.plan import MicroSpan

FACTS = {"size": 8, "expected": 8, "dropped": 0, "padded": 0, "is_finished": True}


def portion(ids, rows=None):
    row_ids = np.array(ids if rows is None else rows, dtype=np.int64)
    return Portion(0, 0, 0, MicroSpan(0, 0, len(ids), len(row_ids)), row_ids)


def certify(*ranks, **changes):
    """``ranks``: for each a list of (due, got)."""
    messages = []
    for pairs in ranks:
        receipts = Receipts()
        for due, got in pairs:
            receipts.receive(portion(due), np.array(got, dtype=np.int64))
        messages.append(receipts.to_message())
    return add_up(messages, due=digest_of_range(0, 8), facts={**FACTS, **changes})


def test_each_once_in_any_order_on_any_rank_is_exact():
    certificate = certify([([3, 1], [3, 1]), ([0, 7], [0, 7])], [([2, 4, 5, 6], [2, 4, 5, 6])])
    assert certificate.ok
    assert str(certificate) == "8 of 8 samples, each once"


def test_l2_a_sample_that_came_twice_in_place_of_another_is_named():
    certificate = certify([(range(8), [0, 1, 2, 3, 4, 5, 6, 6])])
    assert (certificate.delivered, certificate.duplicates, certificate.missing) == (8, 1, 1)
    assert certificate.deviations == (6, 7)
    assert not certificate.ok
    assert str(certificate) == "7 of 8 samples, 1 missing, 1 duplicated, ids 6, 7"


def test_samples_swapped_between_ranks_came_once_all_the_same():
    certificate = certify([([0, 1, 2, 3], [0, 1, 2, 4])], [([4, 5, 6, 7], [3, 5, 6, 7])])
    assert (certificate.duplicates, certificate.missing) == (0, 0)
    assert certificate.is_exact


def test_rows_of_padding_do_not_count():
    receipts = Receipts()
    receipts.receive(portion([5, 6], rows=[5, 6, 5, 6]), np.array([5, 6, 5, 6]))
    assert receipts.delivered == 2
    assert receipts.digest == digest_of(np.array([6, 5]))


def test_an_epoch_that_claims_other_ids_does_not_add_up():
    certificate = certify([(range(1, 9), range(1, 9))])
    assert not certificate.ok
    assert "do not add up" in str(certificate)


def test_the_first_thousand_deviations_are_kept_and_all_are_counted():
    due = list(range(3000))
    receipts = Receipts()
    receipts.skip(portion(due))
    facts = {**FACTS, "size": 3000, "expected": 3000}
    certificate = add_up([receipts.to_message()], due=digest_of_range(0, 3000), facts=facts)
    assert certificate.missing == 3000
    assert certificate.deviations == tuple(range(1000))
    assert str(certificate).endswith("ids 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ...")


def test_dropped_and_padded_are_part_of_the_text():
    certificate = certify([(range(8), range(8))], size=10, dropped=2, padded=3)
    assert str(certificate) == "8 of 10 samples, each once, 2 dropped, 3 rows of padding"


@pytest.mark.parametrize("count", [0, 1, 65535, 65537, 200_000])
def test_the_hash_of_a_range_is_the_hash_of_its_ids_in_any_order(count):
    ids = np.arange(count)[::-1]
    assert digest_of_range(0, count) == digest_of(ids)


def test_the_hash_tells_a_duplicate_from_a_missing_sample():
    seen = {digest_of(np.array(ids)) for ids in ([0, 3], [1, 2], [0, 1], [1, 1], [0, 0, 3])}
    assert len(seen) == 5
