"""Bringing a model's file onto this machine, in a process of its own: `python -P -m router.fetch`.

Owns downloads, joining and verifying. Runs outside the router, so that a slow disk, a heavy client library or a
crash never touches requests. Of this package the router itself imports only `protocol`.
"""
