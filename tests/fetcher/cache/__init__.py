"""Models that outlive pods: real fetchers side by side, killed, with damaged entries and full caches."""
