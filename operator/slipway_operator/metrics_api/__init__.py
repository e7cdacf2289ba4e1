"""The Kubernetes metrics API of the operator: what gateways and pods report, for autoscalers."""
