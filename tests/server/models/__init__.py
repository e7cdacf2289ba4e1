"""Mirrors slipway_server/models."""
