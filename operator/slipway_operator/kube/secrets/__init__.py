"""Secrets that the operator makes and keeps: keys, certificates, and the pepper of API keys.

`kept.py` rotates the first two in steps and writes them to the namespaces of pods; each other module has one Secret.
`cert_manager.py` has certificates issued in place of own ones.
"""
