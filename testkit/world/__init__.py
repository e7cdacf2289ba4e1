"""Programs as processes, and what surrounds them where there is no cluster.

`program` runs one and watches it by `proc`; `forked` starts ours at the price of a fork; `slipway` is an operator with
a gateway against an API server, `pods` what controllers and kubelets would report, `rights` what the operator may do.
"""
