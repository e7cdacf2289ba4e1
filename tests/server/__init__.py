"""Mirrors slipway_server."""
