"""Simulated canaries: how often judges reject healthy ones, and how fast they find bad ones."""
