"""What ranks tell one another beside the data: keys in torch's key-value store."""

from __future__ import annotations

import json
import os
import socket
import time
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Optional, Tuple, Type

from unified_ipu.comms import has_ended
from unified_ipu.errors import CollectiveError, CollectiveTimeoutError, PeerLostError
from unified_ipu.world import host_name

_ERRORS: Dict[str, Type[CollectiveError]] = {
    "lost": PeerLostError,
    "timeout": CollectiveTimeoutError,
    "mismatch": CollectiveError,
}
_ABORT = "abort"
_LOOPBACK = "127.0.0.1"
_LINGER_SECONDS = 5.0
_FIRST_PAUSE_SECONDS = 0.0002
_PAUSE_SECONDS = 0.02


class Board:
    """The store as one rank of a world sees it; shared by all groups made from it.

    Args:
        store: With a prefix of its own for this world.
        rank: Of this process.
        size: Number of ranks.
        serves: Whether the store ends with this process, as others need it until they left.
        address: Of this host as seen on the way to the store, ``""`` if that is not known.
    """

    def __init__(
        self, store: Any, rank: int, size: int, *, serves: bool, address: str = ""
    ) -> None:
        self.store = store
        self.rank = rank
        self.size = size
        self._serves = serves
        self._address = address
        self.gave_up = False
        self._hosts: List[str] = []
        self._pids: List[int] = []
        self._peers: List[str] = []

    def join(self) -> None:
        """Say that this rank is here."""
        with _translated():
            entry = [host_name(), os.getpid(), self._address]
            self.store.set(f"here/{self.rank}", json.dumps(entry))

    def learn(self) -> None:
        """Read who is where; all are here."""
        entries = [json.loads(self._get(f"here/{rank}")) for rank in range(self.size)]
        self._hosts = [entry[0] for entry in entries]
        self._pids = [entry[1] for entry in entries]
        self._peers = [entry[2] for entry in entries if entry[2] and not _is_loopback(entry[2])]

    @property
    def is_one_host(self) -> bool:
        """Whether all ranks run on the same one."""
        return len(set(self._hosts)) == 1

    @property
    def own_address(self) -> str:
        """Where the others can reach this rank; ``""``: let gloo find out by the host's name.

        On its own host, the name of who holds the store often means loopback: then the way to
        another rank tells.
        """
        if self.is_one_host:
            return _LOOPBACK
        if not self._address or not _is_loopback(self._address) or not self._peers:
            return self._address
        return address_towards(self._peers[0], 1)

    def is_dead(self, rank: int) -> bool:
        """Whether a rank's process is known to have ended: only seen on this host."""
        is_near = bool(self._hosts) and self._hosts[rank] == self._hosts[self.rank]
        # Ranks of one process are threads, and end with it.
        return is_near and self._pids[rank] != os.getpid() and has_ended(self._pids[rank])

    def describe(self, rank: int) -> str:
        """Where a rank runs."""
        return f"process {self._pids[rank]}" if self._pids else "its process"

    def abort(self, kind: str, text: str) -> None:
        """Give the job up; only the first call of all ranks counts."""
        self.gave_up = True
        with _translated():
            self.store.compare_set(_ABORT, "", json.dumps([kind, text]))

    def check(self) -> None:
        """Raise if anyone has given up.

        Raises:
            CollectiveError: The same on all ranks.
        """
        if self._has(_ABORT):
            self.gave_up = True
            kind, text = json.loads(self._get(_ABORT))
            raise _ERRORS[kind](text)

    def arrive(self, group: str, number: int, operation: str) -> None:
        """Say that this rank waits in collective ``number`` of a group, and what that is."""
        with _translated():
            self.store.set(f"at/{group}/{self.rank}", f"{number} {operation}")

    def arrived(self, group: str, rank: int) -> Tuple[int, str]:
        """The last collective of a group that a rank was seen waiting in, 0 for none."""
        key = f"at/{group}/{rank}"
        number, _, operation = (self._get(key) if self._has(key) else "0").partition(" ")
        return int(number), operation

    def announce(self, phase: Optional[str]) -> None:
        """Announce a phase in which nobody waits for this rank in vain, or its end."""
        with _translated():
            self.store.set(f"phase/{self.rank}", phase or "")

    def phase(self, rank: int) -> Optional[str]:
        """The phase a rank has announced and not left yet."""
        key = f"phase/{rank}"
        return (self._get(key) or None) if self._has(key) else None

    def has_left(self, rank: int, group: str) -> bool:
        """Whether a rank has closed this group's communicator."""
        return self._has(f"left/{group}/{rank}")

    def leave(self, group: str) -> None:
        """Say that this rank is done with a group."""
        try:
            self.store.set(f"left/{group}/{self.rank}", "1")
        except RuntimeError:
            return  # the store is gone, and with it who could want to know

    def linger(self, group: str) -> None:
        """Keep the store alive until the others have left, a few seconds at most."""
        deadline = time.monotonic() + (_LINGER_SECONDS if self._serves else 0.0)
        waiting = [rank for rank in range(self.size) if rank != self.rank]
        while waiting and time.monotonic() < deadline:
            waiting = [
                rank
                for rank in waiting
                if not self.has_left(rank, group) and not self.is_dead(rank)
            ]
            if waiting:
                time.sleep(_PAUSE_SECONDS)

    def await_key(self, key: str, seconds: float) -> bool:
        """Wait for a key; whether it came. The store's own wait warns when its time is over."""
        end = time.monotonic() + seconds
        pause = _FIRST_PAUSE_SECONDS
        while not self._has(key):
            if time.monotonic() > end:
                return False
            time.sleep(pause)
            pause = min(2 * pause, _PAUSE_SECONDS)
        return True

    def put(self, key: str, data: bytes) -> None:
        """Store bytes."""
        with _translated():
            self.store.set(key, data)

    def pull(self, key: str) -> bytes:
        """Take bytes that are there out of the store."""
        with _translated():
            data: bytes = self.store.get(key)
            self.store.delete_key(key)
            return data

    def _has(self, key: str) -> bool:
        with _translated():
            return bool(self.store.check([key]))

    def _get(self, key: str) -> str:
        with _translated():
            text: str = self.store.get(key).decode("utf-8", "replace")
            return text


def address_towards(host: str, port: int) -> str:
    """This host's address on the way to another one, ``""`` if there is no way; sends nothing."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(place)
            return str(probe.getsockname()[0])
    except OSError:
        return ""


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"


@contextmanager
def _translated() -> Iterator[None]:
    """Turn errors of the store into ours.

    Raises:
        PeerLostError: If the process that holds the store cannot be reached any more.
    """
    try:
        yield
    except RuntimeError as error:
        raise PeerLostError(
            "the process that holds the key-value store (rank 0, or torchrun's agent) cannot be "
            f"reached: {str(error).splitlines()[0]}"
        ) from error
