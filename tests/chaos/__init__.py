"""The chaos run's own judgement: what counts as good, saved, lost; proved without a cluster."""
