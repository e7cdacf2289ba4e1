"""The Kubernetes metrics API of the operator, for autoscalers.

`sampler.py` scrapes pods and gateways, `series.py` computes values from samples, `app.py` and `server.py` serve them.
The API server forwards requests here where no other provider is registered.
"""
