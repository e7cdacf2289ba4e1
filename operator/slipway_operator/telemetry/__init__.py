"""What the operator tells about itself: metrics, logs, health."""
