"""Mirrors slipway_server/engine."""
