"""Mirrors slipway_server/text."""
