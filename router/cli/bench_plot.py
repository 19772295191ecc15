"""The figures of a sweep as a picture. Needs matplotlib, which the extra `bench` installs."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

from router.cli.bench_figures import Level
from router.cli.output import CommandFailed, ExitCode

_BLUE, _GREY = "#2f6f9f", "#9a9a9a"


def check_plot(file: Path) -> None:
    """It is known before anything is measured that the picture can be drawn. Raises: CommandFailed."""
    if importlib.util.find_spec("matplotlib") is None:
        text = f"--plot needs matplotlib: {sys.executable} -m pip install matplotlib, or leave --plot out"
        raise CommandFailed(text, ExitCode.FAILED)
    if file.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise CommandFailed(f"--plot writes .png, .svg and .pdf files, not {file.name!r}", ExitCode.USAGE)
    if not file.absolute().parent.is_dir():
        raise CommandFailed(f"--plot: there is no folder {file.absolute().parent}", ExitCode.USAGE)


def draw(levels: Sequence[Level], title: str, file: Path) -> None:
    """The tokens in a second and the time to the first token, over the requests at once, are in `file`.

    Raises: CommandFailed.
    """
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    figure, (speeds, times) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    shown = [level for level in levels if level.good]
    at_once = [level.concurrency for level in shown]
    speeds.plot(at_once, [level.total_per_second for level in shown], "o-", color=_BLUE, label="all together")
    speeds.plot(at_once, [level.stream_per_second() for level in shown], "o--", color=_GREY, label="each")
    speeds.set_ylabel("tokens in a second")
    times.plot(at_once, [level.ttft_s(0.5) for level in shown], "o-", color=_BLUE, label="half of them")
    times.plot(at_once, [level.ttft_s(0.95) for level in shown], "o--", color=_GREY, label="95 % of them")
    times.set_ylabel("seconds to the first token, at most")
    for axes in (speeds, times):
        axes.set_xlabel("requests at once")
        axes.set_xscale("log", base=2)
        axes.set_xticks(at_once, [str(num) for num in at_once])
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, fontsize=10)
    try:
        figure.savefig(file, dpi=150)
    except OSError as error:
        raise CommandFailed(f"cannot write {file}: {error.strerror or error}") from None
    finally:
        plt.close(figure)
