"""The order of an epoch: a keyed permutation with random access and next to no memory.

Above 1,024 samples it is a generalised Feistel network on ``a * b >= n`` with cycle walking;
``a * b`` exceeds ``n`` by about ``sqrt(n)``, so walking is rare for every ``n``. Up to 1,024
samples a Feistel network does not reach all permutations evenly, so there the order is a sorted
keyed hash: a table of at most 8 KiB.

Rejected after measuring: an xor network on ``2**k`` (walks half the time just above a power of
two), swap-or-not (twenty times slower), and numpy's generators (O(n) memory, and their streams may
change with numpy).

Source: Black and Rogaway, "Ciphers with arbitrary finite domains", 2002. Eight rounds: four fail
tests of pairs and differences, six pass from n = 100.
"""

from __future__ import annotations

from math import isqrt
from typing import Optional, Tuple

import numpy as np

from unified_ipu.data.mixing import derive_keys, mix64
from unified_ipu.errors import ConfigError

TABLE_LIMIT = 1024
MAX_SIZE = 1 << 62

_ROUNDS = 8
_BLOCK = 8192  # three uint64 scratch arrays of this length stay in the L2 cache
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_S32 = np.uint64(32)


class Order:
    """Which sample stands at which position of one epoch; the identity without ``shuffle``.

    Args:
        size: Number of samples, ``1 <= size < 2**62``.
        seed: Any integer.
        epoch: Any integer; another epoch is another permutation.
        shuffle: False keeps the samples in their own order.

    Raises:
        ConfigError: If ``size`` is out of range.
    """

    def __init__(self, size: int, *, seed: int = 0, epoch: int = 0, shuffle: bool = True) -> None:
        if not 1 <= size < MAX_SIZE:
            raise ConfigError(f"size: got {size}; expected 1 <= size < 2**62")
        self.size = size
        self._table: Optional[np.ndarray] = None
        self._keys: Tuple[np.uint64, ...] = ()
        self._halves = (0, 0)
        if not shuffle:
            return
        keys = derive_keys(f"{seed}|{epoch}|{size}", purpose=b"ui-order", count=_ROUNDS)
        if size <= TABLE_LIMIT:
            hashes = mix64(mix64(np.arange(size), keys[0]), keys[1])
            self._table = np.argsort(hashes, kind="stable").astype(np.int64)
            return
        self._keys = keys
        first = isqrt(size) + 1
        self._halves = (first, size // first + 1)

    def ids(self, positions: np.ndarray) -> np.ndarray:
        """Sample ids int64 ``[n]`` at ``positions`` ``[n]``, each in ``[0, size)``.

        A call costs about 0.1 ms however short it is: ask for thousands at a time.

        Raises:
            ConfigError: If a position is outside of the epoch.
        """
        given = self._checked(positions, "position")
        if self._table is not None:
            ids: np.ndarray = self._table[given]
            return ids
        if not self._keys:
            return given.copy()
        return self._blocks(given, forward=True)

    def slice(self, start: int, stop: int) -> np.ndarray:
        """Sample ids int64 ``[stop - start]`` at the positions ``start`` to ``stop``."""
        return self.ids(np.arange(start, stop, dtype=np.int64))

    def positions(self, ids: np.ndarray) -> np.ndarray:
        """Positions int64 ``[n]`` of sample ``ids`` ``[n]``: the inverse of ``ids``.

        Raises:
            ConfigError: If an id is outside of ``[0, size)``.
        """
        given = self._checked(ids, "id")
        if self._table is not None:
            inverse = np.empty_like(self._table)
            inverse[self._table] = np.arange(self.size, dtype=np.int64)
            positions: np.ndarray = inverse[given]
            return positions
        if not self._keys:
            return given.copy()
        return self._blocks(given, forward=False)

    def _checked(self, values: np.ndarray, what: str) -> np.ndarray:
        given = np.asarray(values, dtype=np.int64)
        if given.size and (given.min() < 0 or given.max() >= self.size):
            raise ConfigError(
                f"{what}s from {given.min()} to {given.max()} were asked for; expected "
                f"0 <= {what} < {self.size}, the size of the source"
            )
        return given

    def _blocks(self, values: np.ndarray, *, forward: bool) -> np.ndarray:
        """Encipher (or decipher) in blocks that stay in the cache, walking back into range."""
        out = np.empty(len(values), dtype=np.int64)
        unsigned, limit = out.view(np.uint64), np.uint64(self.size)
        scratch = np.empty((3, min(_BLOCK, len(values))), dtype=np.uint64)
        for start in range(0, len(values), _BLOCK):
            block = unsigned[start : start + _BLOCK]
            np.copyto(block, values[start : start + _BLOCK], casting="unsafe")
            self._permute(block, scratch[:, : len(block)], forward=forward)
            outside = np.nonzero(block >= limit)[0]
            while len(outside):
                walkers = block[outside]
                room = np.empty((3, len(walkers)), dtype=np.uint64)
                self._permute(walkers, room, forward=forward)
                block[outside] = walkers
                outside = outside[walkers >= limit]
        return out

    def _permute(self, block: np.ndarray, scratch: np.ndarray, *, forward: bool) -> None:
        """Apply the network to ``block`` in place."""
        left, right, noise = scratch
        width = np.uint64(self._halves[1])
        np.floor_divide(block, width, out=left)
        np.multiply(left, width, out=right)
        np.subtract(block, right, out=right)
        order = range(_ROUNDS) if forward else range(_ROUNDS - 1, -1, -1)
        for index in order:
            # Even rounds change the left half (mod a) by the right, odd ones the right (mod b).
            changed, other = (left, right) if index % 2 == 0 else (right, left)
            modulus = np.uint64(self._halves[index % 2])
            np.add(other, self._keys[index], out=noise)
            np.multiply(noise, _FIRST, out=noise)
            np.right_shift(noise, _S32, out=block)
            np.bitwise_xor(noise, block, out=noise)
            np.multiply(noise, _SECOND, out=noise)
            np.right_shift(noise, _S32, out=noise)
            np.multiply(noise, modulus, out=noise)  # range reduction without a division
            np.right_shift(noise, _S32, out=noise)
            if forward:
                np.add(changed, noise, out=changed)
                np.subtract(changed, modulus, out=noise)
            else:
                np.subtract(changed, noise, out=changed)
                np.add(changed, modulus, out=noise)
            # The wrong one of the two has wrapped around or is too large by the modulus.
            np.minimum(changed, noise, out=changed)
        np.multiply(left, width, out=block)
        np.add(block, right, out=block)
