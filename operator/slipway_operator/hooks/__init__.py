"""Webhooks of rollouts: sends the calls that a plan names and keeps their responses.

`post.py` is one HTTP request with its retries, `runner.py` the calls in progress.
This folder knows no Kubernetes and decides nothing; `planning/rollout/hooks.py` decides.
"""
