"""Sentences about files, for those who are not told where on the machine the files lie.

Owns how a path is found in a sentence. Must not know who is told what: `auth.py` does.
"""

from __future__ import annotations

import re

_FOLDER = re.compile(
    r"""(?<!GET[ ])(?<!POST[ ])(?<![\w/:.~?=&-])  # no route, no address, no middle of a word
    (?:~[\w.-]*|\.{1,2})?/                         # of the root, of a home, or relative
    (?>[^/\s'"`;:,()]+/+                           # folders,
      |[^/\n'"`;:,()]*[^/\s.~'"`;:,()]/+           # their names may have spaces inside
    )*
    (?=[^\s/])                                     # and before what they hold""",
    re.VERBOSE,
)


def without_folders(text: str) -> str:
    """Return a sentence with the last part only of each path; routes and addresses stay as they are."""
    return _FOLDER.sub("", text) if "/" in text else text
