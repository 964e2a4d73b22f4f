"""A warm rank: loads functions of test files and calls them, until its pool is gone."""

from __future__ import annotations

import faulthandler
import gc
import importlib
import importlib.util
import os
import pickle
import signal
import struct
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any, Dict, Optional, Sequence, Tuple

from unified_ipu.launch import hold_lifeline, write_all

HEAD = struct.Struct(">Q")
STACKS = signal.SIGUSR1  # makes a worker write the stacks of its threads


def main(arguments: Sequence[str]) -> None:
    """Serve requests.

    Args:
        arguments: Descriptors of lifeline, requests and answers, then modules to import first.
    """
    lifeline, requests, answers = (int(text) for text in arguments[:3])
    hold_lifeline(lifeline)
    for descriptor in (requests, answers):
        os.set_inheritable(descriptor, False)
    faulthandler.enable()
    faulthandler.register(STACKS, all_threads=True)
    for name in arguments[3:]:
        if importlib.util.find_spec(name) is not None:
            importlib.import_module(name)
    modules: Dict[Tuple[str, int], ModuleType] = {}
    answer = (True, b"")
    num_imported = 0
    while True:
        gc.collect()  # what the call left open is closed now, not inside the next test
        if len(sys.modules) > num_imported:
            # What was imported stays: looking through all of it took 0.2 s a call.
            gc.freeze()
            num_imported = len(sys.modules)
        _send(answers, answer)
        body = _receive(requests)
        if body is None:
            return
        answer = _answer(body, modules)


def _answer(body: bytes, modules: Dict[Tuple[str, int], ModuleType]) -> Tuple[bool, bytes]:
    """Call what the request names; ``(True, pickled result)`` or ``(False, traceback)``."""
    try:
        request = pickle.loads(body)  # noqa: S301  # written by the pool that started us
        sys.path.extend(entry for entry in request["path"] if entry not in sys.path)
        module = _load(request["file"], request["module"], modules)
        function: Any = module
        for name in request["name"].split("."):
            function = getattr(function, name)
        kwargs = pickle.loads(request["kwargs"])  # noqa: S301  # likewise
        return True, pickle.dumps(function(request["world"], **kwargs))
    except BaseException:  # noqa: BLE001  # SystemExit included: a worker must answer
        return False, traceback.format_exc().encode()


def _load(file: str, name: str, modules: Dict[Tuple[str, int], ModuleType]) -> ModuleType:
    key = (file, Path(file).stat().st_mtime_ns)
    if key in modules:
        return modules[key]
    folder = str(Path(file).parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    # Under the name it has in the test session, so that its classes can be pickled both ways.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    modules[key] = module
    return module


def _receive(descriptor: int) -> Optional[bytes]:
    head = _read_exactly(descriptor, HEAD.size)
    return None if head is None else _read_exactly(descriptor, HEAD.unpack(head)[0])


def _read_exactly(descriptor: int, count: int) -> Optional[bytes]:
    data = bytearray()
    while len(data) < count:
        chunk = os.read(descriptor, min(count - len(data), 1 << 20))
        if not chunk:
            return None
        data += chunk
    return bytes(data)


def _send(descriptor: int, answer: Tuple[bool, bytes]) -> None:
    body = pickle.dumps(answer)
    write_all(descriptor, HEAD.pack(len(body)) + body)
