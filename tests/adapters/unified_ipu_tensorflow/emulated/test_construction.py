"""Scopes of strategies in several threads, as ranks in threads open them."""

from __future__ import annotations

import threading

import tensorflow as tf

from unified_ipu_tensorflow.emulated.keras.construction import models_are_extended
from unified_ipu_tensorflow.emulated.keras.extension import Extension


def test_scopes_that_threads_leave_in_any_order_leave_keras_as_it_was():
    before = tf.keras.Model.__dict__["__new__"]
    first_is_in, second_is_in, first_is_out = (threading.Event() for _ in range(3))
    found = {}

    def first() -> None:
        with models_are_extended("first"):
            first_is_in.set()
            second_is_in.wait(30)
        found["outside"] = tf.keras.Sequential()
        first_is_out.set()

    def second() -> None:
        first_is_in.wait(30)
        with models_are_extended("second"):
            second_is_in.set()
            first_is_out.wait(30)
            found["inside"] = tf.keras.Sequential()

    threads = [threading.Thread(target=work) for work in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert isinstance(found["inside"], Extension)
    assert not isinstance(found["outside"], Extension)
    assert tf.keras.Model.__dict__["__new__"] is before
