"""Entry of a worker process: `python -P -m worker`, started by the router with a launch spec on stdin.

With `--spare` the spec comes at any later time, and until then everything is imported that a worker needs.
"""

from __future__ import annotations

import sys
import time
from typing import NoReturn

_STARTED_AT_S = time.monotonic()

from worker.bytecode import store_bytecode  # noqa: E402 - the clock starts before the imports
from worker.contract import SPARE_ARGUMENT  # noqa: E402
from worker.lifeline import Lifeline, die_with_parent  # noqa: E402
from worker.rights import folders_of, give_up_privileges, restrict  # noqa: E402


def main() -> NoReturn:
    """The worker has lived and its process has ended."""
    die_with_parent()
    give_up_privileges()
    folders = folders_of(sys.argv[1:])
    if folders:
        store_bytecode(_import_all)
        restrict(folders)
    lifeline = Lifeline()
    lifeline.start()
    from worker.process import run, run_spare

    if SPARE_ARGUMENT in sys.argv[1:]:
        run_spare(lifeline)
    run(lifeline, _STARTED_AT_S)


def _import_all() -> None:
    from worker.process import import_all

    import_all()


if __name__ == "__main__":
    main()
