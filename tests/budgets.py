"""Size of every package of `ppopt/` in nodes of its syntax trees, and its budget.

    python -m tests.budgets

Prints the table. Docstrings, imports and annotations are not counted, so that comments, formatting,
documentation and types are free. `tests/budgets.json` has the budget of every package, and
`tests/test_budgets.py` fails if a package is larger. In that file, the sum of the budgets is `base`
plus the nodes of all `raises`; every raise says what users get for it.
`--update` writes today's sizes, for a change that keeps or reduces the sum. `--update --users-get
SENTENCE` also raises the sum.
"""

from __future__ import annotations

import argparse
import ast
import json
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1] / "ppopt"
FILE = Path(__file__).with_suffix(".json")
SLACK_NODES = 200
SLACK_SHARE = 0.01
"""A budget is lowered if its package is smaller by more than this many nodes and this share."""


def main(arguments: list[str] | None = None) -> None:
    """Print the table, or update the file."""
    parser = argparse.ArgumentParser(prog="python -m tests.budgets", description=__doc__)
    parser.add_argument("--update", action="store_true", help="write today's sizes")
    parser.add_argument("--users-get", metavar="SENTENCE", help="the reason for a larger sum")
    options = parser.parse_args(arguments)
    nodes, budget = package_nodes(ROOT), json.loads(FILE.read_text(encoding="utf-8"))
    if options.update:
        try:
            budget = updated(nodes, budget, options.users_get)
        except ValueError as error:
            parser.error(str(error))
        FILE.write_text(json.dumps(budget, indent=2) + "\n", encoding="utf-8")
    print(table(nodes, budget["packages"]))


def package_nodes(folder: Path) -> dict[str, int]:
    """Nodes of each subfolder with Python files, and of the files directly in the folder."""
    nodes: Counter[str] = Counter()
    for path in sorted(folder.rglob("*.py")):
        package = path.relative_to(folder).parts[0] if path.parent != folder else folder.name
        nodes[package] += count_nodes(path.read_text(encoding="utf-8"))
    return dict(nodes)


def count_nodes(source: str) -> int:
    """Nodes of the syntax tree of a module without docstrings, imports and annotations."""
    nodes: list[ast.AST] = [ast.parse(source)]
    for node in nodes:  # the list grows until it has every node
        uncounted = (getattr(node, "annotation", None), getattr(node, "returns", None))
        children = ast.iter_child_nodes(node)
        nodes += (child for child in children if child not in uncounted and not _is_free(child))
    return len(nodes)


def _is_free(node: ast.AST) -> bool:
    """Whether it is an import, or a docstring of a module, class, function, field or constant."""
    match node:
        case ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant(value=str())):
            return True
    return False


def updated(nodes: dict[str, int], budget: dict[str, Any], users_get: str | None) -> dict[str, Any]:
    """The budget with today's sizes; ValueError if the sum rises without a reason."""
    base, raises = budget["base"], list(budget["raises"])
    rise = sum(nodes.values()) - sum(budget["packages"].values())
    if rise > 0 and not users_get:
        reason = "reduce another package, or say what users get for it by --users-get"
        raise ValueError(f"the sum is {rise} nodes above the budget: {reason}")
    if rise > 0:
        raises.append({"nodes": rise, "users_get": users_get})
    return {"base": base + min(rise, 0), "raises": raises, "packages": dict(sorted(nodes.items()))}


def faults(nodes: dict[str, int], budget: dict[str, Any]) -> list[str]:
    """What contradicts the budget, with what to do about it."""
    packages = budget["packages"]
    lines = [f"{name}: a package without a budget" for name in sorted(nodes.keys() - packages)]
    lines += [f"{name}: a budget without a package" for name in sorted(packages.keys() - nodes)]
    for name in sorted(nodes.keys() & packages):
        size, limit = nodes[name], packages[name]
        if size > limit:
            lines.append(
                f"{name}: {size - limit} nodes above its budget of {limit}: see CONTRIBUTING.md"
            )
        elif limit - size > max(SLACK_NODES, SLACK_SHARE * limit):
            lines.append(f"{name}: {limit - size} nodes below: python -m tests.budgets --update")
    allowed = budget["base"] + sum(entry["nodes"] for entry in budget["raises"])
    if sum(packages.values()) != allowed:
        lines.append(
            f"the budgets have the sum {sum(packages.values())}, base and raises {allowed}"
        )
    if not all(
        entry["nodes"] > 0 and len(entry["users_get"].split()) > 4 for entry in budget["raises"]
    ):
        lines.append("a raise has its nodes, and a sentence that says what users get")
    return lines


def table(nodes: dict[str, int], packages: dict[str, int]) -> str:
    """Package, nodes now, budget and difference, with the sums."""
    rows = [
        (name, nodes.get(name, 0), packages.get(name, 0)) for name in sorted({*nodes, *packages})
    ]
    rows.append(("sum", sum(nodes.values()), sum(packages.values())))
    lines = [f"{'package':12}{'nodes':>9}{'budget':>9}{'difference':>12}"]
    return "\n".join(lines + [f"{name:12}{a:9}{b:9}{a - b:+12}" for name, a, b in rows])


if __name__ == "__main__":
    main()
