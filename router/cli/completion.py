"""`corral completion`: the script by which a shell completes commands, options and names of models.

Owns how it is installed. The script is click's own; what names there are `completing.py` tells.
"""

from __future__ import annotations

import click

from router.cli.output import CommandFailed, is_terminal, note

_VARIABLE = "_CORRAL_COMPLETE"

_HOW = {
    "bash": "corral completion bash > ~/.local/share/bash-completion/completions/corral",
    "zsh": "corral completion zsh > ~/.zfunc/_corral    (with `fpath+=~/.zfunc` in ~/.zshrc)",
    "fish": "corral completion fish > ~/.config/fish/completions/corral.fish",
}


@click.command()
@click.argument("shell", type=click.Choice(list(_HOW)))
def completion(shell: str) -> None:
    """Print a script for SHELL that completes commands, options and names of models.

    To have it in every shell from now on, make the folder if need be, and then:

    \b
      corral completion bash > ~/.local/share/bash-completion/completions/corral
      corral completion zsh > ~/.zfunc/_corral
      corral completion fish > ~/.config/fish/completions/corral.fish

    For zsh, ~/.zshrc needs the lines `fpath+=~/.zfunc` and `autoload -Uz compinit; compinit`. In this shell alone:

    \b
      eval "$(corral completion bash)"
    """
    from click.shell_completion import get_completion_class

    from router.cli import main

    kind = get_completion_class(shell)
    if kind is None:
        raise CommandFailed(f"this release of click has no completion for {shell}")
    try:
        script = kind(main, {}, "corral", _VARIABLE).source()
    except RuntimeError as error:  # an old bash, or none
        raise CommandFailed(str(error)) from None
    click.echo(script)
    if is_terminal():
        note(f"to have it in every shell from now on: {_HOW[shell]}")
