"""`holdfast completion`: the script that lets a shell complete commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the script that completes commands in a shell.

    For bash, put this into ~/.bashrc: eval "$(holdfast completion bash)". For zsh, the same with zsh into ~/.zshrc. For
    fish: holdfast completion fish > ~/.config/fish/completions/holdfast.fish
    """
    complete = get_completion_class(shell)
    assert complete is not None
    click.echo(complete(ctx.find_root().command, {}, "holdfast", "_HOLDFAST_COMPLETE").source())
