"""What the demo, benchmarks, tests and the suite on a real cluster share; the product never imports it.

`until` waits for a condition; `report` writes build/reports; `load/` sends requests and records how each ended;
`cluster/` is Kubernetes as kubectl, helm and the API server show it; `world/` starts our programs as processes.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]  # of the repository
