"""The two ports: the API for clients and the admin port for probes, metrics and the operator.

`api` has the routes and ends every request in one count. `listener` bounds connections and heads; `operator_token`
authenticates the operator.
"""
