"""Certificates by an issuer of cert-manager, in place of the release's own authorities.

`issuer.py` names the issuer and checks what it issued; `trust.py` has which CAs processes trust, and who signs.
Authorities of the release are in `model/cluster/authorities.py`.
"""
