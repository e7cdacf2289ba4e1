"""Webhooks: one signed POST to the callback_url of a batch or job that has ended, until its receiver takes it.

`signing` is the Standard Webhooks scheme, `receivers` makes the guarded calls, `deliverer` is the loop. The database
has the webhooks and the times of their next attempts (`store.delivery_store`).
"""
