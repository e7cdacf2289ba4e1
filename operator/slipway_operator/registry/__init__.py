"""Follows models of an MLflow registry that specs name by models:/ URIs, and writes verdicts back to their versions.

`answers.py` reads what the tracking server answers (pure), `client.py` calls it, `runner.py` decides when.
"""
