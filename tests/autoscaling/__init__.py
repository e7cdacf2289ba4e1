"""The autoscaling suite's own judgement: what a watch told, invariants, the table."""
