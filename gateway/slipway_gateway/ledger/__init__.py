"""The ledger: what each tenant used, by key, model, revision and hour, each response once.

`store` is the database, `writer` brings charges there in batches, `spending` is what tenants spent today and this
month. Charges come from `quotas.meter`.
"""
