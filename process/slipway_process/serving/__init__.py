"""What the servers of language models and of classic models share around their own routes.

`program` starts and ends one, `server` is the guard of every request, start, drain and end, `probes` and `tls` are its
ports, `errors`, `bodies`, `priority` and `tenant` read what clients and the gateway send; `restarts` keeps the process
that computes, `turns` is fair between tenants, `metrics`, `tracing` and `heartbeat` show what happens.
"""
