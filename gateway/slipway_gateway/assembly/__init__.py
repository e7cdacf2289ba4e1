"""Makes the parts of a gateway from its settings, for its composition root.

`forwarding` makes what forwards requests, `stores` what is written to and shared with others, `cluster` what is read
from Kubernetes.
"""
