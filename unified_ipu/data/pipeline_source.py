"""Samples made by a function of the user in the data process."""

from __future__ import annotations

from dataclasses import dataclass

from unified_ipu.errors import ConfigError


@dataclass(frozen=True)
class PipelineSource:
    """A pipeline that the data process builds; nothing of it is imported here.

    Args:
        kind: Name in the entry-point group ``unified_ipu.sources``.
        function: ``"module:function"``; called once in the data process, returns ``sample(s)``.
        size: Number of samples, at least 1.
        batched: Whether ``sample`` takes and returns many samples at once.

    Raises:
        ConfigError: If ``function`` or ``size`` cannot be right.
    """

    kind: str
    function: str
    size: int
    batched: bool = False

    def __post_init__(self) -> None:
        module, _, name = self.function.partition(":")
        if not (name.isidentifier() and all(part.isidentifier() for part in module.split("."))):
            raise ConfigError(
                f'{self.kind}: got the function {self.function!r}; expected "module:function", '
                "a module that the data process can import and a function in it"
            )
        if type(self.size) is not int or self.size < 1:
            raise ConfigError(
                f"{self.kind}: got size={self.size!r}; expected the number of samples, an integer "
                ">= 1"
            )


def tensorflow(function: str, *, size: int, batched: bool = False) -> PipelineSource:
    """Samples of a tf.data pipeline that runs in a process of its own.

    ``function`` is called once there and returns ``sample(s)``, which is mapped over the epoch's
    order; ``s.index`` is the sample id and ``s.seed`` two integers from (seed, epoch, index).

    Args:
        function: ``"module:function"``.
        size: Number of samples; the ids are 0 to ``size - 1``.
        batched: Whether ``sample`` takes vectors of indices and returns rows.

    Returns:
        The source.

    Raises:
        ConfigError: If ``function`` or ``size`` cannot be right.
    """
    return PipelineSource("tensorflow", function, size, batched)


def stream(function: str) -> PipelineSource:
    """Samples of an iterable; not built yet.

    Args:
        function: ``"module:function"``.

    Raises:
        ConfigError: Always.
    """
    raise ConfigError(
        f"stream({function!r}) is not built yet; use tensorflow(..., size=) with a function of the "
        "sample index, or arrays or dataset"
    )
