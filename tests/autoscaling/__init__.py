"""The checks of the autoscaling suite: events of a watch, invariants, the table."""
