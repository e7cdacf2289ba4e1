"""Webhooks: one signed POST to the callback_url of a batch or job that has ended, until its receiver takes it.

`signing` is the Standard Webhooks scheme, `receivers` makes the guarded calls, `deliverer` is the loop. What is
delivered and when it is tried again is in the database (`store.delivery_store`).
"""
