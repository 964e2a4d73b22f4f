"""Asks one adapter about a plan; a process of its own, since a bad pair of packages may crash it.

``python -m unified_ipu.report.doctor_child NAME`` reads a plan as JSON from standard input and
writes one line of JSON as its last.
"""

from __future__ import annotations

import json
import sys

from unified_ipu.plan import Plan
from unified_ipu.report.machine import answer


def main() -> None:
    """Answer on standard output."""
    plan = Plan.from_dict(json.load(sys.stdin))
    sys.stdout.write("\n" + json.dumps(answer(sys.argv[1], plan)) + "\n")


if __name__ == "__main__":
    main()
