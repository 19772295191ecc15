"""The table of a run, printed again and written for keeping: `python -m bench.report bench/out/FILE.json [NAME]`.

With a name it writes bench/results/NAME.md and .json and the plots beside them.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from bench.plots import draw
from bench.raw import Raw, read_raw
from bench.table import markdown, summary

RESULTS = Path(__file__).parent / "results"


def document(raw: Raw, plots: list[Path]) -> str:
    """Return the whole report as Markdown."""
    found = raw.table()
    parts = [
        f"# Figures of {raw.made[:10]}",
        "\n".join(f"- {name}: {value}" for name, value in {**raw.machine, "llama-server": raw.peer}.items()),
        "Medians; where they differ, the least and the most of all runs in brackets. Each run was on a fresh server."
        f" All servers used the peer's libllama and {raw.settings.get('threads', '?')} threads, with the same slots and"
        " context. *Best* is the better of llama-server's defaults and the tuning that a screening chose for the row.",
        markdown(found),
        summary(found),
    ]
    if raw.screening is not None:
        parts.append("## llama-server's tunings")
        for family, options in raw.screening.chosen.items():
            parts.append(f"Best for {family}: `{options}`")
            names = list(next(iter(raw.screening.results[family].values()), {}))
            rows = [
                f"| `{name}` | " + " | ".join(f"{values[each]:.2f}" for each in names) + " |"
                for name, values in raw.screening.results[family].items()
                if all(each in values for each in names)
            ]
            head = f"| options | {' | '.join(names)} |\n|{' --- |' * (len(names) + 1)}\n"
            parts.append(head + "\n".join(rows))
    if raw.notes:
        parts += ["## Notes", "\n".join(f"- {note}" for note in raw.notes)]
    parts += [f"![{plot.stem}]({plot.name})" for plot in plots]
    return "\n\n".join(parts) + "\n"


def main(arguments: list[str]) -> int:
    """Print, and write if a name is given; return the exit code."""
    if len(arguments) not in (1, 2):
        print(__doc__)
        return 2
    file = Path(arguments[0])
    try:
        raw = read_raw(file)
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"{file} is not a raw file of the bench: {error}")
        return 1
    if len(arguments) == 1:
        print(document(raw, []))
        return 0
    stem = RESULTS / arguments[1]
    plots = draw(raw.table(), stem)
    if plots is None:
        print("no plots: matplotlib is missing (pip install -e '.[bench]')")
    stem.parent.mkdir(parents=True, exist_ok=True)
    stem.with_name(f"{stem.name}.md").write_text(document(raw, plots or []), encoding="utf-8")
    shutil.copyfile(file, stem.with_name(f"{stem.name}.json"))
    print(f"written: {stem}.md, .json and {len(plots or [])} plots")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
