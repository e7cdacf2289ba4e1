"""Mirrors slipway_server/http."""
