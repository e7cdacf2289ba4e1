"""What the gateway says about itself: metrics and logs."""
