"""The methods of Keras models on IPUs: options, ``compile``, ``fit``, ``evaluate``, ``predict``.

Source: Graphcore's Keras of SDK 3.4, ``keras/ipu/extensions/extensions_base.py``, and
``functional_extensions.py``, ``sequential_extensions.py``, ``model_extensions.py`` for signatures.
"""

from __future__ import annotations

from typing import Any, Optional

import tensorflow as tf

from unified_ipu_tensorflow.emulated.keras.fitting import FitOptions, run_fit
from unified_ipu_tensorflow.emulated.keras.running import run_evaluate, run_predict

_STEPS = ("train_step", "make_train_function", "make_test_function", "make_predict_function")


class Extension:
    """Comes before the class of a model that was made in the scope of an ``IPUStrategy``."""

    _ipu_state: Any

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """As in Keras; ``steps_per_execution`` is the length of a device program.

        Raises:
            RuntimeError: If it should run eagerly.
            ValueError: If the length is no positive int.
        """
        if kwargs.get("run_eagerly"):
            raise RuntimeError(
                "Keras models cannot run eagerly when using `IPUStrategy`. Set "
                "`run_eagerly=False` when calling `compile`."
            )
        state = self._ipu_state
        steps = kwargs.pop("steps_per_execution", None)
        if steps is not None and (type(steps) is not int or steps < 1):
            raise ValueError(f"steps_per_execution has to be a positive int, got {steps!r}")
        super().compile(*args, **kwargs)  # type: ignore[misc]  # the class after this one has it
        state.steps_per_execution = steps or 1
        state.is_compiled = True
        state.reset()

    def set_asynchronous_callbacks(self, asynchronous: bool = False) -> None:
        """Whether callbacks are called for every step, as results arrive."""
        self._ipu_state.is_asynchronous = bool(asynchronous)

    def set_replication_options(self, replicated_metric_reduction_method: Any = "NONE") -> None:
        """How values of several replicas are reduced; a program keeps what it was made with."""
        method = self._ipu_state.metric_reduction
        self._ipu_state.metric_reduction = type(method).parse(replicated_metric_reduction_method)

    def set_gradient_accumulation_options(
        self,
        gradient_accumulation_steps_per_replica: Optional[int] = None,
        gradient_accumulation_reduction_method: Any = "sum",
        use_v2_gradient_accumulation_optimizer: bool = False,
        **gradient_accumulation_optimizer_kwargs: Any,
    ) -> None:
        """How many micro-batches are behind an update, and how they are reduced.

        Raises:
            NotImplementedError: For the second kind of accumulating optimizer.
        """
        if use_v2_gradient_accumulation_optimizer:
            raise NotImplementedError("use_v2_gradient_accumulation_optimizer is not emulated")
        self._ipu_state.set_accumulation(
            gradient_accumulation_steps_per_replica,
            gradient_accumulation_reduction_method,
            gradient_accumulation_optimizer_kwargs,
        )

    def set_pipelining_options(
        self,
        gradient_accumulation_steps_per_replica: Optional[int] = None,
        device_mapping: Any = None,
        accumulate_outfeed: Optional[bool] = None,
        gradient_accumulation_reduction_method: Any = "sum",
        **pipelining_kwargs: Any,
    ) -> None:
        """The same for models in stages.

        Raises:
            NotImplementedError: If stages should lie elsewhere than on IPUs of their own.
        """
        if device_mapping is not None:
            raise NotImplementedError("device_mapping is not emulated; leave it out")
        self._ipu_state.set_pipelining(
            gradient_accumulation_steps_per_replica,
            gradient_accumulation_reduction_method,
            accumulate_outfeed,
            pipelining_kwargs,
        )

    def set_pipeline_stage_assignment(self, pipeline_stage_assignment: Any) -> None:
        """One stage a layer of a ``Sequential``.

        Raises:
            NotImplementedError: For other models.
        """
        if not isinstance(self, tf.keras.Sequential):
            raise NotImplementedError("stages are emulated for Sequential models only")
        self._ipu_state.set_stages(pipeline_stage_assignment, len(self.layers))

    def set_infeed_queue_options(self, **kwargs: Any) -> None:
        """Options of the queue of batches."""
        self._ipu_state.set_infeed(kwargs)

    def set_outfeed_queue_options(self, **kwargs: Any) -> None:
        """Options of the queue of results."""
        self._ipu_state.set_outfeed(kwargs)

    def fit(  # noqa: PLR0917 the SDK's signature
        self,
        x: Any = None,
        y: Any = None,
        batch_size: Optional[int] = None,
        epochs: int = 1,
        verbose: Any = "auto",
        callbacks: Any = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        shuffle: bool = True,
        class_weight: Any = None,
        sample_weight: Any = None,
        initial_epoch: int = 0,
        steps_per_epoch: Optional[int] = None,
        **others: Any,
    ) -> Any:
        """Train; returns the history.

        Raises:
            RuntimeError: If a step was overridden.
        """
        _refuse(
            "fit",
            others,
            validation_split=validation_split,
            validation_data=validation_data,
            class_weight=class_weight,
            initial_epoch=initial_epoch,
        )
        _check_steps(self)
        options = FitOptions(
            batch_size=batch_size,
            steps=steps_per_epoch,
            epochs=epochs,
            verbose=1 if verbose == "auto" else int(verbose),
            callbacks=callbacks,
            shuffle=shuffle,
        )
        return run_fit(self, (x, y, sample_weight), options)

    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: Optional[int] = None,
        verbose: Any = 1,
        sample_weight: Any = None,
        steps: Optional[int] = None,
        callbacks: Any = None,
        return_dict: bool = False,
        **others: Any,
    ) -> Any:
        """Loss and metrics of the last step, as a list or a dict."""
        _refuse("evaluate", others, callbacks=callbacks)
        _check_steps(self)
        logs = run_evaluate(self, (x, y, sample_weight), batch_size=batch_size, steps=steps)
        del verbose
        if return_dict:
            return logs
        values = list(logs.values())
        return values[0] if len(values) == 1 else values

    def predict(
        self,
        x: Any,
        batch_size: Optional[int] = None,
        verbose: Any = 0,
        steps: Optional[int] = None,
        callbacks: Any = None,
        **others: Any,
    ) -> Any:
        """Outputs of all rows, those of a step's replicas behind each other."""
        _refuse("predict", others, callbacks=callbacks)
        _check_steps(self)
        del verbose
        return run_predict(self, (x, None, None), batch_size=batch_size, steps=steps)


def _check_steps(model: Any) -> None:
    for name in _STEPS:
        if getattr(type(model), name, None) is not getattr(tf.keras.Model, name, None):
            raise RuntimeError(
                f"The function `{name}` for the model {model.name} has been overridden. This is "
                "not supported when using Keras within an IPUStrategy."
            )


def _refuse(method: str, others: Any, **given: Any) -> None:
    for name, value in {**given, **others}.items():
        if value:
            raise NotImplementedError(f"{method}({name}=...) is not emulated; leave it out")
