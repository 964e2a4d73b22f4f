"""How the ranks of one host find each other: an abstract socket named after user and job.

Rank 0 listens, the others try until it does. There is no port, no file and no name to leave
behind; two jobs have two names. Rank 0 waits for all, then hands the control segment over
(SCM_RIGHTS). A second name, answered from then on, tells a rank that comes too late that its place
is taken instead of letting it wait.
"""

from __future__ import annotations

import array
import json
import logging
import os
import select
import socket
import struct
import time
from contextlib import ExitStack
from hashlib import blake2b
from typing import Any, Dict, List, Optional, Tuple

from unified_ipu.comms.segment import Segment
from unified_ipu.comms.signature import name_ranks
from unified_ipu.errors import CollectiveError, CollectiveTimeoutError, PeerLostError

logger = logging.getLogger("unified_ipu.comms")

_VERSION = 1
_MOST_BYTES = 65536
_SLICE_SECONDS = 0.2
_FIRST_RETRY_SECONDS = 0.005
_LAST_RETRY_SECONDS = 0.1
_CREDENTIALS = struct.Struct("3i")  # struct ucred of unix(7): pid, uid, gid


class Meeting:
    """One job's place to meet, as one rank sees it.

    Args:
        rank: Of this process.
        size: Number of ranks.
        job: Unique to this run and restart, the same on all its ranks.
        timeout_seconds: How long ranks may be apart.
        stall_report_seconds: After how long rank 0 says who is missing.
    """

    def __init__(
        self, rank: int, size: int, job: str, *, timeout_seconds: float, stall_report_seconds: float
    ) -> None:
        self.rank = rank
        self.size = size
        self.job = job
        self._timeout_seconds = timeout_seconds
        self._deadline = time.monotonic() + timeout_seconds
        self._report_at = time.monotonic() + stall_report_seconds
        digest = blake2b(job.encode(), digest_size=16).hexdigest()
        self._name = f"\0unified_ipu/{os.getuid()}/{digest}"

    def host(self, segment: Segment) -> Tuple[List[int], int]:
        """Wait for the other ranks and hand them the segment.

        Returns:
            Process ids by rank, and a descriptor to keep open as long as the world lives.

        Raises:
            CollectiveError: If someone joins who does not belong here; all others are told.
            CollectiveTimeoutError: If a rank does not come in time.
            PeerLostError: If a rank ends while it waits.
        """
        with ExitStack() as stack:
            marker = stack.enter_context(_socket())
            self._bind(marker, f"{self._name}/taken")
            listener = stack.enter_context(_socket())
            self._bind(listener, self._name)
            listener.listen(self.size)
            joined: Dict[int, Tuple[socket.socket, int]] = {}
            try:
                while len(joined) < self.size - 1:
                    self._accept(listener, joined, stack)
            except CollectiveError as error:
                refusal = {"error": str(error), "lost": isinstance(error, PeerLostError)}
                for connection, _ in joined.values():
                    _tell(connection, refusal)
                raise
            marker.listen(0)  # from now on, who is late learns it
            pids = [os.getpid()] + [joined[rank][1] for rank in range(1, self.size)]
            answer = {"pids": pids, "nbytes": segment.nbytes}
            for connection, _ in joined.values():
                _tell(connection, answer, segment.fd)
            return pids, marker.detach()

    def join(self) -> Tuple[List[int], Segment]:
        """Find rank 0 and get the segment from it.

        Returns:
            Process ids by rank, and the segment.

        Raises:
            CollectiveError: If rank 0 refuses, or the world is complete without this rank.
            CollectiveTimeoutError: If there is no rank 0 in time.
            PeerLostError: If rank 0 ends before all are there.
        """
        with self._connect() as connection:
            _check_user(connection)
            hello = {"version": _VERSION, "rank": self.rank, "size": self.size, "pid": os.getpid()}
            _tell(connection, hello)
            while not _readable(connection):
                # Rank 0 gives up at its own deadline and says who is missing; ours is the backstop.
                if time.monotonic() > self._deadline + self._timeout_seconds + 1.0:
                    raise CollectiveTimeoutError(self._late("rank 0 did not answer"))
            answer, fd = _hear(connection)
        if answer is None:
            raise PeerLostError(f"rank 0 of job {self.job!r} ended before all ranks had joined")
        if "error" in answer:
            kind = PeerLostError if answer.get("lost") else CollectiveError
            raise kind(answer["error"])
        return answer["pids"], Segment(fd, answer["nbytes"])

    def _accept(
        self,
        listener: socket.socket,
        joined: Dict[int, Tuple[socket.socket, int]],
        stack: ExitStack,
    ) -> None:
        self._check_time(joined)
        sockets = [listener] + [connection for connection, _ in joined.values()]
        ready, _, _ = select.select(sockets, [], [], _SLICE_SECONDS)
        for rank, (connection, pid) in joined.items():
            if connection in ready:  # they have nothing more to say: this is their end
                raise PeerLostError(f"rank {rank} (process {pid}) ended while ranks were joining")
        if listener not in ready:
            return
        connection = stack.enter_context(listener.accept()[0])
        pid = _check_user(connection)
        # A rank says hello at once after connecting; who connects and is silent is none.
        hello = _hear(connection)[0] if _readable(connection, _SLICE_SECONDS * 5) else None
        if hello is None:
            return
        problem = self._problem(hello, pid, joined)
        if problem:
            _tell(connection, {"error": problem})
            raise CollectiveError(problem)
        joined[hello["rank"]] = (connection, pid)

    def _problem(
        self, hello: Dict[str, Any], pid: int, joined: Dict[int, Tuple[socket.socket, int]]
    ) -> str:
        rank, size = hello.get("rank"), hello.get("size")
        if hello.get("version") != _VERSION:
            return f"rank {rank} runs another version of unified_ipu; use one for all ranks"
        if size != self.size:
            return (
                f"rank {rank} expects a world of {size} ranks, rank 0 one of {self.size}; "
                "start all ranks of a job with the same world size"
            )
        if not isinstance(rank, int) or not 0 < rank < self.size or rank in joined:
            return (
                f"two processes say they are rank {rank} of job {self.job!r} (world size "
                f"{self.size}); give every process a rank of its own"
            )
        if hello.get("pid") != pid:
            return f"rank {rank} is in another pid namespace; run all ranks of a host in one"
        return ""

    def _check_time(self, joined: Dict[int, Any]) -> None:
        now = time.monotonic()
        missing = [rank for rank in range(1, self.size) if rank not in joined]
        if now > self._deadline:
            raise CollectiveTimeoutError(self._late(f"{name_ranks(missing)} did not join"))
        if now > self._report_at:
            self._report_at = now + 2 * (now - self._deadline + self._timeout_seconds)
            logger.warning("waiting for %s of %d to start", name_ranks(missing), self.size)

    def _connect(self) -> socket.socket:
        pause = _FIRST_RETRY_SECONDS
        while True:
            connection = _socket()
            try:
                connection.connect(self._name)
            except OSError:
                connection.close()
            except BaseException:
                connection.close()
                raise
            else:
                return connection
            self._check_taken()
            if time.monotonic() > self._deadline:
                raise CollectiveTimeoutError(self._late("rank 0 did not start"))
            time.sleep(pause)
            pause = min(2 * pause, _LAST_RETRY_SECONDS)

    def _check_taken(self) -> None:
        with _socket() as probe:
            probe.setblocking(False)
            try:
                probe.connect(f"{self._name}/taken")
            except BlockingIOError:
                pass
            except OSError:
                return
            raise CollectiveError(
                f"the world of job {self.job!r} is complete without this process, which says it is "
                f"rank {self.rank} of {self.size}; another one has that rank, or two jobs have the "
                "same id"
            )

    def _late(self, what: str) -> str:
        return (
            f"{what} within {self._timeout_seconds:g} s in job {self.job!r} of {self.size} ranks; "
            "see its own output, or raise comms.timeout_seconds"
        )

    def _bind(self, listener: socket.socket, name: str) -> None:
        try:
            listener.bind(name)
        except OSError as error:
            raise CollectiveError(
                f"another process is rank 0 of job {self.job!r} already ({error.strerror}); "
                "give every process a rank of its own and every run a job id of its own"
            ) from error


def _socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _check_user(connection: socket.socket) -> int:
    """Process id at the other end.

    Raises:
        CollectiveError: If it is of another user.
    """
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    if uid != os.getuid():
        raise CollectiveError(f"process {pid} of user {uid} holds this job's meeting place")
    return int(pid)


def _readable(connection: socket.socket, seconds: float = _SLICE_SECONDS) -> bool:
    return bool(select.select([connection], [], [], seconds)[0])


def _tell(connection: socket.socket, message: Dict[str, Any], fd: Optional[int] = None) -> None:
    ancillary = []
    if fd is not None:
        ancillary.append((socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd])))
    try:
        connection.sendmsg([json.dumps(message).encode()], ancillary, socket.MSG_NOSIGNAL)
    except OSError:
        # The other end is gone: whoever waits for it finds out by its process.
        logger.debug("a rank closed its connection while joining")


def _hear(connection: socket.socket) -> Tuple[Optional[Dict[str, Any]], int]:
    """One message and the descriptor that came with it, -1 if none; (None, -1) at the end."""
    fds = array.array("i", [-1])
    try:
        data, ancillary, _, _ = connection.recvmsg(
            _MOST_BYTES, socket.CMSG_SPACE(fds.itemsize), socket.MSG_CMSG_CLOEXEC
        )
    except OSError:
        return None, -1
    for level, kind, raw in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds = array.array("i")
            fds.frombytes(raw[: fds.itemsize])
    if not data:
        return None, -1
    message: Dict[str, Any] = json.loads(data)
    return message, fds[0]
