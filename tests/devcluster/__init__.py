"""Tests of devcluster: the pure parts fast, the rest on what really runs."""
