"""Conditions that report a problem while they are True; written by docs/generate.py."""

BAD_WHEN_TRUE = frozenset(
    {
        "AnalysisRunLost",
        "UsageReportsImplausible",
        "TenantIsolationUnknown",
        "LanesDiffer",
        "ErrorBudgetSpent",
        "AccuracyAlarm",
        "UnknownField",
        "NameConflict",
        "ForeignObjects",
    }
)
