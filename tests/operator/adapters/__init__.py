"""ModelAdapters: what pods report, what the file lists, and what reconciles see of both."""
