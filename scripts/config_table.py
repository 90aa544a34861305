"""Print the README's configuration table from the configuration's own types.

usage: scripts/config_table.py [--write]    with --write it replaces the table in README.md
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from gateway.config import GatewayConfig, WorkerConfig

README = Path(__file__).resolve().parent.parent / "README.md"
BEGIN, END = "<!-- configuration -->\n", "<!-- /configuration -->\n"


def rows(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, Any, str]]:
    """Yield path, default and description of every setting below ``model``."""
    for name, field in model.model_fields.items():
        if field.annotation == tuple[WorkerConfig, ...]:
            yield from rows(WorkerConfig, f"{prefix}{name}[].")
        elif isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from rows(field.annotation, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field.default, field.description or ""


def shown(default: Any) -> str:
    """Write a default the way YAML has it."""
    if default is PydanticUndefined:
        return "required"
    if default is None or default == "" or default == ():
        return ""
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def table() -> str:
    """Return the Markdown table."""
    lines = ["| setting | default | meaning |", "|---|---|---|"]
    lines += [
        f"| `{path}` | {shown(default)} | {text} |" for path, default, text in rows(GatewayConfig)
    ]
    return "\n".join(lines) + "\n"


def replaced(text: str) -> str:
    """Return the README with a fresh table between the two marks."""
    head, rest = text.split(BEGIN)
    _, tail = rest.split(END)
    return f"{head}{BEGIN}{table()}{END}{tail}"


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        README.write_text(replaced(README.read_text()))
    else:
        print(table(), end="")
