"""``launch``: a function on all ranks of a plan, from Python or a notebook."""

from __future__ import annotations

import pickle
import sys
import tempfile
from pathlib import Path
from typing import Any, Callable, Optional, Sequence, Tuple, Union

from unified_ipu.errors import LaunchError
from unified_ipu.launch.child import load_function
from unified_ipu.launch.labels import say
from unified_ipu.launch.start import plan_beside, prepare, start_ranks
from unified_ipu.launch.supervise import Outcome
from unified_ipu.plan import Plan
from unified_ipu.world import Handover


def launch(
    fn: Callable[..., Any],
    plan: Union[str, Path, Plan, None] = None,
    *,
    args: Sequence[Any] = (),
    settings: Sequence[str] = (),
    bind: str = "auto",
) -> Any:
    """Run ``fn(*args)`` on every rank of a plan, each a new process.

    The ranks are started afresh, never forked: what this process has done with threads or
    frameworks does not matter to them.

    Args:
        fn: A function of a module. One of the main program, a lambda or a closure is sent by value,
            which needs cloudpickle.
        plan: Number of ranks, and what ``Session()`` inside ``fn`` takes; None: ``plan.toml``
            beside the running script, else the defaults.
        args: Sent to each rank.
        settings: Single settings above the plan, each ``path=value``.
        bind: Which cores each rank is bound to: ``"auto"``, ``"none"``, ``"core"`` or ``"numa"``.

    Returns:
        What rank 0 returned.

    Raises:
        PlanError: If the plan is wrong; nothing was started then.
        ConfigError: If the ranks cannot be bound so.
        LaunchError: If a rank failed, with its message and traceback; or if ``fn``, ``args`` or
            the result cannot be sent to another process.
        KeyboardInterrupt: If it was interrupted; the ranks are ended first.
    """
    program = sys.argv[0] if hasattr(sys.modules["__main__"], "__file__") and sys.argv else ""
    base = plan_beside(program) if plan is None else plan
    start = prepare(base, settings=settings, bind=bind)
    for note in start.notes:
        say(note)
    payload = _payload(fn, tuple(args), program)
    with tempfile.TemporaryDirectory(prefix="unified-ipu-") as folder:
        plan_path = None if plan is None else _plan_file(plan, folder)
        with tempfile.TemporaryFile() as file:
            file.write(payload)
            file.flush()
            supervisor, processes = start_ranks(
                start,
                ["function", str(file.fileno())],
                handover=Handover(plan_path, tuple(settings)),
                payload=file.fileno(),
            )
            outcome = supervisor.wait()
    _check(outcome, start.num_ranks)
    result = processes[0].result
    if result is None:
        raise LaunchError(f"rank 0 of {start.num_ranks} ended without returning from {_name(fn)}")
    return pickle.loads(result)  # noqa: S301  # written by our own child


def _payload(fn: Callable[..., Any], args: Tuple[Any, ...], program: str) -> bytes:
    reference = _reference(fn)
    pickler: Any = pickle
    if reference is None:
        try:
            import cloudpickle
        except ImportError as error:
            raise LaunchError(
                f"{_name(fn)} is no function of an importable module, so another process cannot "
                "import it; put it into a module of its own, or install cloudpickle"
            ) from error
        pickler = cloudpickle
    try:
        return pickle.dumps(
            {
                "path": [entry or str(Path.cwd()) for entry in sys.path],
                "program": program,
                "function": pickler.dumps(fn) if reference is None else reference,
                "arguments": pickler.dumps(args),
            }
        )
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise LaunchError(
            f"{_name(fn)} and its arguments cannot be sent to another process: {error}; pass "
            "numbers, strings, arrays or paths, and build the rest inside the function"
        ) from error


def _reference(fn: Callable[..., Any]) -> Optional[str]:
    """``module:qualname`` if that finds ``fn`` again, else None."""
    module, qualname = getattr(fn, "__module__", None), getattr(fn, "__qualname__", "")
    if module in {None, "__main__"} or "<" in qualname or module not in sys.modules:
        return None
    reference = f"{module}:{qualname}"
    try:
        return reference if load_function(reference) is fn else None
    except LaunchError:
        return None


def _plan_file(plan: Union[str, Path, Plan], folder: str) -> str:
    if not isinstance(plan, Plan):
        return str(Path(plan).resolve())
    path = Path(folder) / "plan.toml"
    path.write_text(plan.to_toml(), encoding="utf-8")
    return str(path)


def _check(outcome: Outcome, num_ranks: int) -> None:
    if outcome.signum is not None:
        raise KeyboardInterrupt
    if outcome.failure is not None:
        raise LaunchError(outcome.failure.describe(num_ranks))


def _name(fn: Callable[..., Any]) -> str:
    return f"{getattr(fn, '__module__', '?')}.{getattr(fn, '__qualname__', repr(fn))}"
