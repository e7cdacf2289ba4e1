"""Mirrors slipway_predict."""
