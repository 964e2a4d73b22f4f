"""The pipeline of examples/mnist_mixed, which turns and shifts digits; for the data process."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "mnist_mixed"))

from pipeline import train as train
