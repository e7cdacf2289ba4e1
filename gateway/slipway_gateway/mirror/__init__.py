"""Mirrored requests: copies that a revision under test gets and no client sees.

`queue` bounds and runs single ones, whose responses `transcript` and `scoring` compare with stable's. `twins` runs
pairs, one `leg` each at canary and stable; `probes` adds prompts, `quality` compares some, `scorer` has some rated.
`shadow_request` prepares copies, `endpoints` chooses pods, `room` has each namespace's part of what they may take.
"""
