"""A lowering carried out on objects: calls made, attributes set, nothing else executed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, List

import pytest

from unified_ipu.adapter import NativeCall, apply_native_calls, native_arguments, native_value
from unified_ipu.errors import ConfigError


class Options:
    def __init__(self):
        self.made: List[Any] = []
        self.Training = SimpleNamespace(accumulation=lambda n: self.made.append(("A", n)))
        self.seed = 0

    def iterations(self, count):
        self.made.append(("D", count))

    def pair(self, key, value, *, deep=False):
        self.made.append((key, value, deep))


def call(name, value):
    return NativeCall("training", name, value, "a field")


def test_calls_are_made_in_order_and_plain_attributes_are_set():
    options = Options()
    calls = [
        call("options.iterations", 5),
        call("options.Training.accumulation", 4),
        call("other.iterations", 7),
        call("options", 1),
        call("options.pair", '="depth", rank * 2 + 1, deep=True'),
        call("options.seed", 9),
    ]
    apply_native_calls(calls, {"options": options}, {"rank": 3})
    assert options.made == [("D", 5), ("A", 4), ("depth", 7, True)]
    assert options.seed == 9


def test_native_code_may_name_call_and_list():
    made = SimpleNamespace(Box=lambda *a: SimpleNamespace(of=lambda flag: (a, flag)), Kind="kind")
    assert native_arguments("=sdk.Box(1, -2).of(False), [sdk.Kind], (None,)", {"sdk": made}) == (
        [((1, -2), False), ["kind"], (None,)],
        {},
    )
    assert native_arguments("=", {}) == ([], {})
    assert native_arguments("plain text", {}) == (["plain text"], {})
    assert native_arguments({"a": 1}, {}) == ([{"a": 1}], {})


def test_a_value_is_found_by_the_name_of_its_call():
    calls = [call("flow.batches", 5), call("flow.kind", "=sdk.Sum")]
    names = {"sdk": SimpleNamespace(Sum=3)}
    assert native_value(calls, "flow.batches", names) == 5
    assert native_value(calls, "flow.kind", names) == 3
    with pytest.raises(ConfigError, match=r"no flow\.other"):
        native_value(calls, "flow.other", names)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("=[x for x in (1,)]", "holds a ListComp"),
        ("=lambda: 1", "holds a Lambda"),
        ("=unknown", "names 'unknown'"),
        ("=sdk.missing", "has no 'missing'"),
        ("=sdk[0]", "holds a Subscript"),
        ("=**sdk", "unpack"),
        ("=1 +", "no list of arguments"),
        ("=1) + (2", "no list of arguments"),
    ],
)
def test_other_code_is_refused(code, words):
    with pytest.raises(ConfigError, match=words.replace("[", r"\[").replace("(", r"\(")):
        native_arguments(code, {"sdk": SimpleNamespace()})


def test_a_name_that_the_object_lacks_is_an_error():
    with pytest.raises(ConfigError, match="Options has no 'unheard'"):
        apply_native_calls([call("options.unheard", 1)], {"options": Options()}, {})


def test_an_attribute_takes_one_value():
    with pytest.raises(ConfigError, match="set, not called"):
        apply_native_calls([call("options.seed", "=1, 2")], {"options": Options()}, {})
