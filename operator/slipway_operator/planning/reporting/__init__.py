"""What users see of a plan: the status with its columns, Events; and the time of the next reconcile.

Everything is derived from decisions of the packages below, or from differences between two statuses. Nothing here
decides.
"""
