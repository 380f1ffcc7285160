"""``python -m assay.cli.docs``: the page docs/cli.md, from the commands themselves."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from assay.cli.main import app

HEAD = """# Commands

This page is made by `python -m assay.cli.docs > docs/cli.md`; a test compares the two.

Every command that concludes something has `--json` and exits with 0 for pass, 2 for fail,
3 for inconclusive and 1 for an error (a usage error included).

Settings from the environment: `ASSAY_API_KEY`, `ASSAY_TIMEOUT_S` (600), `ASSAY_CONNECT_TIMEOUT_S`
(10), `ASSAY_RETRIES` (3), `ASSAY_CONCURRENCY` (8), `ASSAY_CACHE_DIR` (models of the demo).
"""


def render() -> str:
    """The page as Markdown."""
    parts = [HEAD, *(_section(name, command) for name, command in _commands(get_command(app), ()))]
    return "\n".join(parts)


def _commands(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """Every command that does something, with its full name, groups opened."""
    children = getattr(command, "commands", None)
    if children is None:
        yield " ".join(path), command
        return
    if path and command.invoke_without_command:  # a group that is a command itself, as `assay node`
        yield " ".join(path), command
    for name, child in children.items():
        yield from _commands(child, (*path, name))


def _section(name: str, command: Any) -> str:
    shown = [parameter for parameter in command.params if parameter.name != "help"]
    arguments = [p for p in shown if p.param_type_name == "argument"]
    options = [p for p in shown if p.param_type_name == "option"]
    usage = " ".join(["assay", name, *(_metavar(a) for a in arguments), "[options]"])
    lines = [f"## assay {name}", "", f"`{usage}`", "", inspect.cleandoc(command.help or ""), ""]
    lines += [f"- `{_metavar(a)}`: {a.help or ''}" for a in arguments]
    lines += [_option(option) for option in options]
    return "\n".join(lines) + "\n"


def _metavar(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())


def _option(option: Any) -> str:
    names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
    facts = ["required"] if option.required else []
    flag = isinstance(option.default, bool)
    if not flag and option.default is not None and not callable(option.default):
        facts.append(f"default `{option.default}`")
    note = f" ({'; '.join(facts)})" if facts else ""
    text = f": {option.help}" if option.help else ""
    return f"- {names}{note}{text}"


if __name__ == "__main__":
    print(render(), end="")
