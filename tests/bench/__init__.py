"""The bench: the sidecar beside its peers and its limit, in one run on the same rows; no test depends on it."""
