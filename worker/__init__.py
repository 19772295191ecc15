"""The worker: one process, one model, many slots. Never imports the router."""
