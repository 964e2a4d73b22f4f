"""Makes the sample adapter importable and its entry point visible, without installing it."""

from __future__ import annotations

import sys
from pathlib import Path

SAMPLE = str(Path(__file__).parent / "unified_ipu_numpy_sample")
if SAMPLE not in sys.path:
    sys.path.insert(0, SAMPLE)
