"""slipway.dev/v1alpha1: ModelDeployment, AnalysisTemplate, ModelRoute, Experiment and Tenant.

What users write is pydantic models; the status is dataclasses that pydantic reads.
A class has the CEL rules of its object, and a docstring under each field is its description in the CRD.
"""
