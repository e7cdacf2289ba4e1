"""Scorers: servers of models' owners that rate both responses of a pair, whose contents they get.

`hosts` decides which addresses they may have, pure. `ballot` writes a call, which does not show whose response is
whose, and reads what comes back, pure. `client` sends it, bounded in size and time; `resolver`
looks its host up.
"""
