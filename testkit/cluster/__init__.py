"""Kubernetes as kubectl, helm and the API server show it, for people and for tests alike.

`api` sends requests by path; `kube` is one cluster with its tools, `diagnosis` what to read when something fails;
`release` is the chart, installed, `deployment` one ModelDeployment, `installation` both as a suite uses them.
"""
