"""How long ``import unified_ipu`` takes beside the import of numpy alone.

Each number is the median over fresh interpreters that take turns. Names of the front are looked up
when they are first used, so the second row adds the session, and with it nearly all of the core.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Dict, List

BAR_MILLISECONDS = 80.0
PEER = "import numpy"
OURS = ("import unified_ipu", "from unified_ipu import Session")
MEASURE = """
import sys, time
wall, cpu = time.perf_counter(), time.process_time()
{statement}
print(1e3 * (time.perf_counter() - wall), 1e3 * (time.process_time() - cpu))
"""


def measure(statement: str) -> List[float]:
    """Run ``statement`` in a new interpreter; return wall and CPU time in milliseconds."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURE.format(statement=statement)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return [float(number) for number in done.stdout.split()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=11)
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    arguments = parser.parse_args()

    samples: Dict[str, List[List[float]]] = {statement: [] for statement in (PEER, *OURS)}
    for run in range(arguments.runs + 1):
        for statement, numbers in samples.items():
            result = measure(statement)
            if run:  # the first fills the disk cache
                numbers.append(result)

    rows = []
    for statement in OURS:
        for index, clock in enumerate(("wall", "CPU")):
            ours, peer = (
                statistics.median(numbers[index] for numbers in samples[key])
                for key in (statement, PEER)
            )
            print(
                f"{statement:32} {clock:4} {ours:6.1f} ms   numpy {peer:6.1f} ms   "
                f"beside numpy {ours - peer:6.1f} ms   bar {BAR_MILLISECONDS:.0f} ms"
            )
            rows.append(
                {
                    "row": f"{statement}, {clock} milliseconds beside numpy",
                    "ours": ours - peer,
                    "peer": peer,
                    "ratio": ours / peer,
                    "bar": BAR_MILLISECONDS,
                }
            )
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
