"""Tests of the jobs process."""
