"""The live state beside the route table: requests in flight, ejected endpoints, failsafe, activity.

`load_balancer` is the entry: the published table, the choice of an endpoint, and the report for the operator.
`outlier`, `failsafe` and `service` are pure rules; `attempt` is one request in flight at one endpoint.
"""
