"""What `corral doctor` looks at: one module for each part of an installation.

Each returns findings in words for whoever has to act. Written for machines on which things are broken: what might not
be importable is imported where a failure is reported, and nothing here changes anything.
"""
