"""Conditions that report a problem while they are True; written by docs/generate.py."""

BAD_WHEN_TRUE = frozenset(
    {
        "UsageReportsImplausible",
        "TenantIsolationUnknown",
        "UnknownField",
        "NameConflict",
        "ForeignObjects",
    }
)
