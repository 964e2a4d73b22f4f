"""Which calls a script made itself, so that what they returned can be written as those calls.

A live model does not say how it was made. But the script that is being lowered runs here, and
Python tells a tracing function of each call: those made from the script's own lines are kept, with
their arguments. Only functions of modules and classes are: nothing else can be imported again.
"""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple


@dataclass(frozen=True)
class TracedCall:
    """One call out of the script.

    Args:
        function: A function or a class that can be imported.
        positional: Values of its positional arguments.
        named: Of those that were given by name, and differ from the default.
    """

    function: Any
    positional: Tuple[Any, ...] = ()
    named: Mapping[str, Any] = field(default_factory=dict)


class CallTracer:
    """Traces the calls that a file makes, as a context manager.

    Args:
        script: The file.
    """

    def __init__(self, script: Path) -> None:
        self._script = str(script)
        self._made: Dict[int, Tuple[Any, TracedCall]] = {}
        self._before: Any = None

    def __enter__(self) -> CallTracer:  # noqa: PYI034 - typing.Self is 3.11
        self._before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def call_of(self, value: Any) -> Optional[TracedCall]:
        """The call that made ``value``, this very object; None if there was none."""
        found = self._made.get(id(value))
        return None if found is None else found[1]

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        back = frame.f_back
        if event != "call" or back is None or back.f_code.co_filename != self._script:
            return None
        code, values = frame.f_code, dict(frame.f_locals)
        if code.co_name in {"__init__", "__new__"} and code.co_argcount:
            made = values[code.co_varnames[0]]
            function: Any = made if isinstance(made, type) else type(made)
            if code.co_name == "__init__":
                self._keep(made, _call(function, code, values, skipped=1))
                return None
            return self._returning(function, code, values, skipped=1)
        function = frame.f_globals.get(code.co_name)
        is_own = code.co_filename == self._script  # what it calls can be written, not itself
        if is_own or getattr(function, "__code__", None) is not code:
            return None
        return self._returning(function, code, values, skipped=0)

    def _returning(
        self, function: Any, code: CodeType, values: Dict[str, Any], *, skipped: int
    ) -> Callable[..., Any]:
        """Trace one frame until it returns."""
        call = _call(function, code, values, skipped=skipped)

        def local(frame: FrameType, event: str, value: Any) -> Any:
            frame.f_trace_lines = False
            if event == "return" and value is not None:
                self._keep(value, call)
            return local

        return local

    def _keep(self, value: Any, call: TracedCall) -> None:
        # The object is held, so its id stays its own. A class's own __init__ says more than the
        # __new__ before it.
        self._made[id(value)] = (value, call)


def _call(function: Any, code: CodeType, values: Dict[str, Any], *, skipped: int) -> TracedCall:
    names = list(code.co_varnames)
    positional = names[skipped : code.co_argcount]
    named = names[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    rest = code.co_argcount + code.co_kwonlyargcount
    defaults = _defaults(function)
    first: List[Any] = []
    chosen = {name: values[name] for name in named}
    for index, name in enumerate(positional):
        if name in defaults:
            chosen.update({each: values[each] for each in positional[index:]})
            break
        first.append(values[name])
    if code.co_flags & inspect.CO_VARARGS:
        extra = values[names[rest]]
        rest += 1
        if extra:  # what stands before them can only be given by position
            first = [values[name] for name in positional] + list(extra)
            chosen = {name: value for name, value in chosen.items() if name in named}
    if code.co_flags & inspect.CO_VARKEYWORDS:
        chosen.update(values[names[rest]])
    return TracedCall(
        function,
        tuple(first),
        {name: value for name, value in chosen.items() if not _is(value, defaults.get(name, _NO))},
    )


_NO = object()


def _defaults(function: Any) -> Dict[str, Any]:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}
    return {
        name: each.default
        for name, each in parameters.items()
        if each.default is not inspect.Parameter.empty
    }


def _is(value: Any, default: Any) -> bool:
    if value is default:
        return True
    return (
        type(value) is type(default)
        and isinstance(value, (bool, int, float, str))
        and bool(value == default)
    )
