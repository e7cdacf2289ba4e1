"""Which sequences run in the next step, with how many tokens, and in which KV blocks. Pure.

`scheduler` admits, batches and preempts; `block_manager` allocates blocks and keeps the prefix cache (`block_hash`);
`fairness` orders tenants; `budget` finds how many tokens a step may take.
"""
