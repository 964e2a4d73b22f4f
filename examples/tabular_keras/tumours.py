"""569 real measurements of breast tumours, from the file that the scikit-learn wheel carries."""

from __future__ import annotations

import csv
import importlib.util
from pathlib import Path
from typing import Tuple

import numpy as np

Rows = Tuple["np.ndarray", "np.ndarray"]


def find_table() -> Path:
    """Find the data file inside the installed scikit-learn, without importing it.

    Importing it would need scipy and more; only its data file is wanted.

    Raises:
        FileNotFoundError: If scikit-learn is not installed, or has no such file.
    """
    spec = importlib.util.find_spec("sklearn")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / "datasets" / "data" / "breast_cancer.csv"
        if path.exists():
            return path
    raise FileNotFoundError(
        "breast_cancer.csv comes inside the scikit-learn wheel, which is not installed here: "
        "pip install --no-deps scikit-learn==1.9.1"
    )


def load_tumours() -> Tuple[Rows, Rows]:
    """Load the measurements, split into train and test, in units of their deviation in train.

    Of each class every fifth row is for the test.

    Returns:
        ``(train_values, train_labels), (test_values, test_labels)``: values float32 ``[n, 30]``,
        labels int64 ``[n]``, 0 malignant and 1 benign; n is 456 and 113.
    """
    with find_table().open(newline="", encoding="ascii") as lines:
        table = np.array(list(csv.reader(lines))[1:], np.float64)
    values, labels = table[:, :-1], table[:, -1].astype(np.int64)
    is_test = np.zeros(len(table), bool)
    for label in (0, 1):
        is_test[np.flatnonzero(labels == label)[2::5]] = True
    train = values[~is_test]
    values = ((values - train.mean(axis=0)) / train.std(axis=0)).astype(np.float32)
    return (values[~is_test], labels[~is_test]), (values[is_test], labels[is_test])
