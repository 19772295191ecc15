"""Writes router/openapi.json, which describes every route: `python -m openapi > router/openapi.json`.

Runs where the sources are, never in a server: it looks into both programs, which must not look into each other.
"""
