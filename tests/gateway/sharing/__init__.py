"""Tests of limits that gateways share."""
