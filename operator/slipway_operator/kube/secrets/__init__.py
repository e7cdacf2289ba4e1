"""Secrets that the operator makes and keeps: keys, certificates, and the pepper of API keys.

`kept.py` is how the first two advance by steps and reach the namespaces of pods; each other module has one Secret.
"""
