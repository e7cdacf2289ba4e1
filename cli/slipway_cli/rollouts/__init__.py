"""Decisions about a rollout: the patch for each command that changes one, and when `wait` is done.

Pure: a `Deployment` in, a `Change` or the reason for doing nothing out.
A new command that changes a rollout has its patch here.
"""
