"""What users see of a plan: phase, message, conditions, Events; and when to reconcile again.

Everything is derived from decisions that were made below, or from differences between two statuses.
Nothing here decides.
"""
