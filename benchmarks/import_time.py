"""How long ``import unified_ipu`` takes beside the import of numpy alone.

Each number is the median over fresh interpreters that alternate between the two.
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
MEASURE = """
import sys, time
wall, cpu = time.perf_counter(), time.process_time()
import {module}
print(1e3 * (time.perf_counter() - wall), 1e3 * (time.process_time() - cpu))
"""


def measure(module: str) -> List[float]:
    """Import ``module`` in a new interpreter; return wall and CPU time in milliseconds."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURE.format(module=module)],
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

    samples: Dict[str, List[List[float]]] = {"numpy": [], "unified_ipu": []}
    for run in range(arguments.runs + 1):
        for module, numbers in samples.items():
            result = measure(module)
            if run:  # the first fills the disk cache
                numbers.append(result)

    rows = []
    for index, clock in enumerate(("wall", "CPU")):
        ours, peer = (
            statistics.median(numbers[index] for numbers in samples[module])
            for module in ("unified_ipu", "numpy")
        )
        print(f"{clock:4}  unified_ipu {ours:6.1f} ms   numpy {peer:6.1f} ms   ", end="")
        print(f"beside numpy {ours - peer:6.1f} ms   bar {BAR_MILLISECONDS:.0f} ms")
        rows.append(
            {
                "row": f"import unified_ipu, {clock} milliseconds beside numpy",
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
