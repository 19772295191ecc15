"""Configurations of other servers, turned into ours.

Nothing here runs anything or looks at the disk: text in, text out. What cannot be carried over is said, never dropped
in silence.
"""
