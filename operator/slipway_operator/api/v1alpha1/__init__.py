"""slipway.dev/v1alpha1: ModelDeployment and AnalysisTemplate."""
