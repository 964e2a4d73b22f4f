"""``python -m unified_ipu.testing NAME`` runs the conformance kit."""

from __future__ import annotations

import sys

from unified_ipu.testing.command import main

if __name__ == "__main__":
    sys.exit(main())
