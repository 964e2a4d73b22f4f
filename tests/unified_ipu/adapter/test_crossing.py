from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from unified_ipu.adapter import (
    Copies,
    CopyReason,
    array_of,
    check_dtype,
    crossing,
    crossing_dtypes,
    is_aligned,
    owner_of,
)
from unified_ipu.errors import AdapterLoadError, DataError
from unified_ipu.events import Counters


class Tensor:
    """Of a framework called ``frame``."""


Tensor.__module__ = "frame.core.tensors"


@pytest.fixture(autouse=True)
def frame(monkeypatch, tmp_path):
    """An adapter of that framework is registered; its package lies in the returned folder."""
    points = {"frame": SimpleNamespace(value="adapter_of_frame:create")}
    monkeypatch.setattr(crossing, "registered", lambda: points)
    monkeypatch.syspath_prepend(str(tmp_path))
    crossing._bridge_of_type.cache_clear()
    package = tmp_path / "adapter_of_frame"
    package.mkdir()
    (package / "__init__.py").write_text("", encoding="utf-8")
    yield package
    crossing._bridge_of_type.cache_clear()
    for name in [name for name in sys.modules if name.startswith("adapter_of_frame")]:
        del sys.modules[name]


def test_the_owner_of_a_tensor_is_found_by_its_type(frame):
    (frame / "bridge.py").write_text("name = 'here'\n", encoding="utf-8")

    class Own(Tensor):
        pass

    for tensor in (Tensor(), Own()):
        found: object = owner_of(tensor)
        assert getattr(found, "name", None) == "here"
    assert owner_of(np.float32(1)) is None
    assert owner_of([1.0]) is None


def test_an_adapter_without_a_bridge_owns_nothing():
    assert owner_of(Tensor()) is None


def test_a_bridge_that_cannot_be_imported_is_an_error(frame):
    (frame / "bridge.py").write_text("import no_such_framework\n", encoding="utf-8")
    with pytest.raises(AdapterLoadError, match=r"Tensor cannot cross.*no_such_framework"):
        owner_of(Tensor())


def test_copies_are_counted_by_reason_with_their_bytes():
    counters = Counters()
    copies = Copies(counters)
    copies.add(CopyReason.READ_ONLY, 10)
    copies.add(CopyReason.READ_ONLY, 5)
    copies.add(CopyReason.NOT_ALIGNED, 1)
    assert counters.as_dict() == {
        "copied_because_read_only": 2,
        "copied_because_not_aligned": 1,
        "bytes_copied": 16,
    }


def test_element_types_that_cannot_cross_are_refused_by_the_name_of_the_leaf():
    assert len(crossing_dtypes()) == 15
    for dtype in crossing_dtypes():
        check_dtype(dtype, path="", owner="tensor")
    with pytest.raises(DataError, match=r"^leaf \['name'\] is a text of string; bools"):
        check_dtype("string", path="['name']", owner="text")
    with pytest.raises(DataError, match=r"^the tensor is a"):
        check_dtype("resource", path="", owner="handle")


def test_lines_of_64_bytes_are_aligned():
    assert [is_aligned(address) for address in (0, 64, 65, 96, 128)] == [1, 1, 0, 0, 1]


def test_what_numpy_cannot_read_is_refused():
    assert array_of([1, 2], "x").tolist() == [1, 2]

    class Odd:
        def __array__(self, *_, **__):
            raise ValueError("no values yet")

    with pytest.raises(DataError, match=r"leaf x is a .*Odd that numpy cannot read \(no values"):
        array_of(Odd(), "x")
