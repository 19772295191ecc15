"""Prints the document. To renew the file after a change of routes, fields or docs/routes.md:

python -m openapi > router/openapi.json
"""

from __future__ import annotations

import sys

from openapi.document import document, to_text

if __name__ == "__main__":
    sys.stdout.write(to_text(document()))
