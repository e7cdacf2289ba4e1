"""What the processes, the chart, the CRD and the tree agree on (docs/contracts.md)."""
