"""The part of a new script that decides which rows are fed when, and what each is multiplied with.

The text repeats, in some 60 lines of numpy, what ``unified_ipu.data`` and ``unified_ipu.device``
do: the keyed order of an epoch, padding by rows that do not count, coefficients.
"""

from __future__ import annotations

from typing import List

TABLE_LIMIT = 1024  # of unified_ipu.data.Order

_KEYS = '''\
def keys_of(text, purpose, count):
    """Return 64-bit keys that depend on both texts only."""
    hashed = hashlib.blake2b(text.encode(), person=purpose, digest_size=8 * count)
    return np.frombuffer(hashed.digest(), dtype="<u8").astype(np.uint64)
'''

_MIXED = '''\
def mixed(values, key):
    """Hash integers to 64 bits: the end of SplitMix64 behind an added key."""
    values = values.astype(np.uint64) + key
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
'''

_PLAIN = '''\
def order_of(epoch):
    """Return the samples in their own order, the same in every epoch (data.shuffle)."""
    return np.arange(SAMPLES)
'''

_TABLE = '''\
def order_of(epoch):
    """Return the sample ids of an epoch, int64 [SAMPLES]: those in the order of a keyed hash."""
    first, second = keys_of(f"{SEED}|{epoch}|{SAMPLES}", b"ui-order", 8)[:2]
    hashes = mixed(mixed(np.arange(SAMPLES), first), second)
    return np.argsort(hashes, kind="stable").astype(np.int64)
'''

_NETWORK = '''\
def order_of(epoch):
    """Return the sample ids of an epoch, int64 [SAMPLES]: a keyed permutation.

    It is a Feistel network over a rectangle a little larger than SAMPLES; who lands outside of
    the samples walks on.
    """
    keys = keys_of(f"{SEED}|{epoch}|{SAMPLES}", b"ui-order", 8)
    ids = permuted(np.arange(SAMPLES, dtype=np.uint64), keys)
    outside = ids >= SAMPLES
    while outside.any():
        ids[outside] = permuted(ids[outside], keys)
        outside = ids >= SAMPLES
    return ids.astype(np.int64)


def permuted(values, keys):
    """Change left and right in turn, each by a hash of the other; uint64 throughout."""
    height = np.uint64(math.isqrt(SAMPLES) + 1)
    width = np.uint64(SAMPLES // int(height) + 1)
    half = np.uint64(32)
    left, right = values // width, values % width
    for index, key in enumerate(keys):
        noise = ((left if index % 2 else right) + key) * np.uint64(0xBF58476D1CE4E5B9)
        noise = (noise ^ (noise >> half)) * np.uint64(0x94D049BB133111EB) >> half
        if index % 2:
            right = (right + (noise * width >> half)) % width
        else:
            left = (left + (noise * height >> half)) % height
    return left * width + right
'''

_SEEDS = '''\
def sample_seeds(epoch, ids):
    """Return the only randomness of each sample, int64 [n, 2], from (seed, epoch, id)."""
    keys = keys_of(f"{SEED}|{epoch}", b"ui-sample", 2)
    return np.stack([mixed(ids, key) for key in keys], axis=1).view(np.int64)
'''

_ROWS = '''\
def rows_of(epoch):
    """Return the ids of an epoch's rows, and 1.0 for those that count; [UPDATES, GLOBAL_BATCH].

    Row by row of a micro-batch, micro-batch m = a * REPLICAS + r by micro-batch. Shapes are
    static, so rows that do not count complete the last update; they repeat real ones.
    """
    order = order_of(epoch)
    ids, counts = [], []
    for start in range(0, UPDATES * GLOBAL_BATCH, GLOBAL_BATCH):
        real = order[start : start + GLOBAL_BATCH]
        for first in range(0, GLOBAL_BATCH, MICRO_BATCH):
            rows = real[first : first + MICRO_BATCH]
            filling = np.resize(rows if len(rows) else real, MICRO_BATCH - len(rows))
            ids.append(np.concatenate([rows, filling]))
            counts.append(np.arange(MICRO_BATCH) < len(rows))
    shape = (UPDATES, GLOBAL_BATCH)
    return np.reshape(ids, shape), np.reshape(counts, shape).astype(np.float64)
'''

_CALLS = '''\
def calls_of(data, epoch):
    """Yield inputs, targets and coefficients of each call: UPDATES_PER_CALL updates, then the rest.

    The device adds gradients over micro-batches and replicas and divides nothing, so each row's
    loss is multiplied with its coefficient: {meaning}. An update
    whose W is 0 is not fed: its call is that much shorter.
    """
    fed = []
    for number, (inputs, targets, counts) in enumerate(data.updates_of(epoch), start=1):
        weight = (units_of(targets) * counts).sum()
        if weight > 0.0:
            fed.append((inputs, targets, ({coefficient}).astype(np.float32)))
        if fed and (number % UPDATES_PER_CALL == 0 or number == UPDATES):
            yield tuple(np.concatenate(parts) for parts in zip(*fed))
            fed = []
'''


def order_text(size: int, *, shuffle: bool, seeds: bool, reduction: str) -> str:
    """Functions from an epoch's number to what each call is fed.

    Args:
        size: Of the source.
        shuffle: ``data.shuffle``.
        seeds: Whether samples draw random numbers.
        reduction: ``update.reduction``.
    """
    is_small = size <= TABLE_LIMIT
    parts = []
    if shuffle or seeds:
        parts.append(_KEYS)
    if seeds or (shuffle and is_small):
        parts.append(_MIXED)
    parts.append((_TABLE if is_small else _NETWORK) if shuffle else _PLAIN)
    if seeds:
        parts.append(_SEEDS)
    is_mean = reduction == "mean"
    meaning = "1 / W of its update, 0 for padding" if is_mean else "1, and 0 for padding"
    coefficient = "counts / weight" if is_mean else "counts"
    calls = _CALLS.format(meaning=meaning, coefficient=coefficient)
    if not is_mean:
        calls = calls.replace(f"({coefficient})", coefficient)
    return "\n\n".join([*parts, _ROWS, calls])


def order_imports(size: int, *, shuffle: bool, seeds: bool) -> List[str]:
    """Modules of the standard library that the text needs."""
    found = ["import hashlib"] if shuffle or seeds else []
    return found + (["import math"] if shuffle and size > TABLE_LIMIT else [])
