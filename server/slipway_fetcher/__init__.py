"""Brings model folders to pods: one for a revision, those of a pool, and what a node keeps of both."""
