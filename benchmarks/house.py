"""Counts of what is written more than once in `ppopt/`, as a Markdown table.

python -m benchmarks.house [TREE ...]

TREE is a checkout, by default this one; several stand beside each other. All counts are read off
the syntax trees, by patterns that also know the older trees, whose rooms were elsewhere. A scope is
a function or class at the top of a module. They are estimates of what a reader would count:

- data flow: scopes that name a neighbour (a stage plus or minus 1, `pairwise` of stages or hosts,
  or the shifted slices `[1:]` and `[:-1]` with `p2p`) and in the same function what passes between
  neighbours (`p2p` or a lag), or that name F beside B or BW there.
- forward simulation: scopes with a loop or a generator, a wait (`max`, `maximum`, a comparison
  that raises a time, or a heap) and a clock: an assignment to an entry or attribute whose name is
  one of CLOCKS, where arrivals, lags or delays are read.
- memory arithmetic: files where a sum, product, comparison, `sum`, `max` or `min` contains one of
  the words MEMORY, and no text; the verifier and the rechecker apart, which are written from the
  rules alone.
- constants: UPPER_CASE names assigned at the top of modules of `solver/`.
- circles: strongly connected sets of modules, typing and lazy imports counted; the lazy doors
  are what `schedule.schedule` and `notebook_view` import inside their methods.
- names: public classes of one name in several modules; public functions of one name in several
  modules of one room, but for those that implement an interface: a field of a class of that room,
  of this name, that holds a function (as `Strategy.build` does).
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from benchmarks import record

INDEPENDENT = ("verifier", "rechecker")
"""Rooms that are written from the rules alone: they must repeat them."""
NEIGHBOURS = re.compile(r"(^|_)(stage|source|target|device)$")
STAGES = re.compile(r"host|kept|stage|place")
LINKS = re.compile(r"p2p|(^|_)lag$")
CLOCKS = {"free", "busy", "start", "starts", "end", "ends", "idle", "done", "arrived", "begun"}
MEMORY = re.compile(r"^(activation|memory_b|static|static_of|memory_change|memory|held|holdings?)$")
MEMORY_WORDS = re.compile(r"\b(activation|memory_b|static|held)\b")
JAVASCRIPT_SUM = re.compile(r"(\+=|-=|[^+]\+ |[^-]- |Math\.max)")
DOORS = ("schedule", "schedule.schedule", "notebook_view")
"""Where the lazy doors upwards are, in old and new trees: what shows itself on use."""
Scope = ast.FunctionDef | ast.ClassDef
Graph = Mapping[str, frozenset[str]]


class Module(NamedTuple):
    """One file of Python."""

    name: str
    """Dotted, below `ppopt`; empty for `ppopt` itself."""
    room: str
    """The folder it is in, `.` for the top."""
    path: Path
    tree: ast.Module

    @property
    def scopes(self) -> Iterator[Scope]:
        """Functions and classes at its top."""
        return (node for node in self.tree.body if isinstance(node, Scope))


class House:
    """The package of one checkout."""

    def __init__(self, tree: Path) -> None:
        self.root = tree / "ppopt"
        if not self.root.is_dir():
            raise SystemExit(f"{tree}: has no folder ppopt")

    @cached_property
    def modules(self) -> list[Module]:
        """Every file of Python, by name."""
        return [self._module(path) for path in sorted(self.root.rglob("*.py"))]

    def _module(self, path: Path) -> Module:
        parts = path.relative_to(self.root).with_suffix("").parts
        room = "/".join(parts[:-1]) or "."
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        return Module(".".join(parts), room, path, ast.parse(path.read_text(encoding="utf-8")))

    def places(self, derives: Callable[[Scope], bool]) -> list[str]:
        """Scopes of which something is true, outside the independent rooms."""
        return [
            f"{module.name}:{scope.lineno} {scope.name}"
            for module in self.modules
            if module.room.split("/")[0] not in INDEPENDENT
            for scope in module.scopes
            if derives(scope)
        ]

    @property
    def data_flow(self) -> list[str]:
        """Places that derive data flow."""
        return self.places(derives_data_flow)

    @property
    def simulations(self) -> list[str]:
        """Places that run operations forward in time."""
        return self.places(simulates)

    @property
    def memory(self) -> list[str]:
        """Files with memory arithmetic."""
        found = [
            str(module.path.relative_to(self.root))
            for module in self.modules
            if module.room.split("/")[0] not in INDEPENDENT and _has_memory(module.tree)
        ]
        scripts = sorted(self.root.rglob("*.js"))
        return found + [str(path.relative_to(self.root)) for path in scripts if _sums_memory(path)]

    @property
    def constants(self) -> list[str]:
        """Constants of modules of `solver/`."""
        return [
            f"{module.name}.{name}"
            for module in self.modules
            if module.room.split("/")[0] == "solver"
            for name in _constants(module.tree)
        ]

    @property
    def rooms(self) -> dict[str, tuple[int, int]]:
        """Files and lines of Python, per folder."""
        found: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
        for module in self.modules:
            files, lines = found[module.room]
            count = len(module.path.read_text(encoding="utf-8").splitlines())
            found[module.room] = files + 1, lines + count
        return dict(sorted(found.items()))

    def imports(self, *, door: bool) -> dict[str, frozenset[str]]:
        """What every module imports, typing and lazy imports counted; the lazy door or not."""
        names = {module.name for module in self.modules}
        return {
            module.name: frozenset(
                target
                for node in _imports(module, lazy=door or module.name not in DOORS)
                for target in _targets(node, names)
                if target != module.name
            )
            for module in self.modules
        }

    def circles(self, *, door: bool) -> list[list[str]]:
        """Sets of modules that import each other, largest first."""
        found = [one for one in _components(self.imports(door=door)) if len(one) > 1]
        return sorted(found, key=lambda one: (-len(one), one))

    @property
    def classes(self) -> dict[str, list[str]]:
        """Public classes that several modules define."""
        return _repeated(
            (scope.name, module.name)
            for module in self.modules
            for scope in module.scopes
            if isinstance(scope, ast.ClassDef)
        )

    @property
    def functions(self) -> dict[str, list[str]]:
        """Public functions that several modules of one room define, interfaces apart."""
        found: dict[str, list[str]] = {}
        for room in self.rooms:
            modules = [module for module in self.modules if module.room == room]
            interfaces = {name for module in modules for name in _function_fields(module.tree)}
            pairs = [
                (scope.name, module.name)
                for module in modules
                for scope in module.scopes
                if isinstance(scope, ast.FunctionDef) and scope.name not in interfaces
            ]
            found |= {f"{room}/{name}": homes for name, homes in _repeated(pairs).items()}
        return found


def _function_fields(tree: ast.Module) -> Iterator[str]:
    """Fields of classes that hold a function, by their annotation or its alias."""
    aliases = {
        _word(target): node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
    }
    for field in ast.walk(tree):
        if isinstance(field, ast.AnnAssign):
            annotation = aliases.get(_word(field.annotation), field.annotation)
            if isinstance(annotation, ast.Subscript) and _word(annotation.value) == "Callable":
                yield _word(field.target)


def derives_data_flow(scope: Scope) -> bool:
    """Whether a scope finds out by itself what an operation waits for."""
    return any(
        _names_neighbour(part) and (_names_link(part) or _pairs_kinds(part))
        for part in _functions(scope)
    )


def _functions(scope: Scope) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(scope) if isinstance(node, ast.FunctionDef))


def _names_neighbour(node: ast.AST) -> bool:
    calls = [one for one in ast.walk(node) if isinstance(one, ast.Call)]
    chained = any(_called(one) == "pairwise" and STAGES.search(ast.unparse(one)) for one in calls)
    slices = {ast.unparse(one) for one in ast.walk(node) if isinstance(one, ast.Slice)}
    shifted = {"1:", ":-1"} <= slices and any(_word(one) == "p2p" for one in ast.walk(node))
    steps = any(
        isinstance(one, ast.BinOp)
        and isinstance(one.op, ast.Add | ast.Sub)
        and NEIGHBOURS.search(_word(one.left))
        and _is_step(one.right)
        for one in ast.walk(node)
    )
    return steps or chained or shifted


def _is_step(node: ast.expr) -> bool:
    """Whether an expression is 1, or a choice between steps, or called a step."""
    if isinstance(node, ast.IfExp):
        return _is_step(node.body) or _is_step(node.orelse)
    return ast.unparse(node) in {"1", "-1", "step"}


def _names_link(node: ast.AST) -> bool:
    return any(LINKS.search(_word(one)) for one in ast.walk(node))


def _pairs_kinds(node: ast.AST) -> bool:
    kinds = {_word(one) for one in ast.walk(node)}
    return "F" in kinds and bool(kinds & {"B", "BW"})


def simulates(scope: Scope) -> bool:
    """Whether a scope runs operations forward in time."""
    nodes = list(ast.walk(scope))
    loops = any(isinstance(node, ast.For | ast.While) for node in nodes)
    return (
        loops and any(map(_waits, nodes)) and any(map(_sets_clock, nodes)) and _reads_input(nodes)
    )


def _waits(node: ast.AST) -> bool:
    if isinstance(node, ast.If):
        set_here = [target for one in node.body for target in _assigned(one)]
        compared = node.test.comparators if isinstance(node.test, ast.Compare) else []
        return any(
            ast.dump(a).split("ctx")[0] == ast.dump(b).split("ctx")[0]
            for a in set_here
            for b in compared
        )
    return isinstance(node, ast.Call) and _called(node) in {"max", "maximum", "heappop", "pop"}


def _sets_clock(node: ast.AST) -> bool:
    return any(
        isinstance(target, ast.Subscript) and _word(target.value) in CLOCKS
        for target in _assigned(node)
    )


def _reads_input(nodes: Iterable[ast.AST]) -> bool:
    """Whether arrivals are looked at: links, or the lags of a network."""
    words = re.compile(r"arriv|ready|lag|apart|ahead|came|delay")
    return any(words.search(_word(node)) for node in nodes)


def _assigned(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        pairs = [one.elts if isinstance(one, ast.Tuple) else [one] for one in node.targets]
        return [target for pair in pairs for target in pair]
    return [node.target] if isinstance(node, ast.AugAssign) else []


def _has_memory(tree: ast.AST) -> bool:
    sums = (
        node
        for node in ast.walk(tree)
        if (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub | ast.Mult))
        or isinstance(node, ast.AugAssign)
        or (isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Lt | ast.Gt | ast.LtE))
        or (isinstance(node, ast.Call) and _called(node) in {"sum", "max", "min", "accumulate"})
    )
    return any(
        MEMORY.search(_word(part)) for node in sums if not _is_text(node) for part in ast.walk(node)
    )


def _is_text(node: ast.AST) -> bool:
    """Whether a sum is one of words."""
    return any(isinstance(part, ast.JoinedStr) for part in ast.walk(node))


def _sums_memory(path: Path) -> bool:
    lines = path.read_text(encoding="utf-8").splitlines()
    return any(MEMORY_WORDS.search(line) and JAVASCRIPT_SUM.search(line) for line in lines)


def _constants(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        targets = [node.target] if isinstance(node, ast.AnnAssign) else _assigned(node)
        for target in targets:
            if re.fullmatch(r"_?[A-Z][A-Z0-9_]*", _word(target)) and len(_word(target)) > 1:
                yield _word(target)


def _word(node: ast.AST) -> str:
    """The last name of an expression, empty if it has none."""
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


def _called(node: ast.Call) -> str:
    return _word(node.func)


def _imports(module: Module, *, lazy: bool) -> Iterator[ast.Import | ast.ImportFrom]:
    inside = {
        node
        for scope in ast.walk(module.tree)
        if isinstance(scope, ast.FunctionDef)
        for node in ast.walk(scope)
    }
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import | ast.ImportFrom) and (lazy or node not in inside):
            yield node


def _targets(node: ast.Import | ast.ImportFrom, names: set[str]) -> Iterator[str]:
    """Modules of the package that a statement imports from."""
    if isinstance(node, ast.Import):
        found = [alias.name for alias in node.names]
    else:
        base = node.module or ""
        found = [f"{base}.{alias.name}" for alias in node.names]
    for name in found:
        parts = name.split(".")
        if parts[0] == "ppopt":
            inner = ".".join(parts[1:])
            yield inner if inner in names else ".".join(parts[1:-1])


def _components(graph: Graph) -> list[list[str]]:
    """Strongly connected components: of two modules, each reaches the other."""
    reach = {name: _reached(graph, name) for name in graph}
    found: dict[str, list[str]] = {}
    for name in graph:
        found.setdefault(
            min(one for one in reach[name] | {name} if one == name or name in reach[one]), []
        ).append(name)
    return list(found.values())


def _reached(graph: Graph, start: str) -> set[str]:
    seen, left = set[str](), [start]
    while left:
        for name in graph[left.pop()] - seen:
            seen.add(name)
            left.append(name)
    return seen


def _repeated(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    homes: dict[str, list[str]] = defaultdict(list)
    for name, home in pairs:
        if not name.startswith("_") and home not in homes[name]:
            homes[name].append(home)
    return {name: found for name, found in sorted(homes.items()) if len(found) > 1}


def table(houses: Mapping[str, House]) -> str:
    """The counts of several checkouts beside each other."""
    counts: dict[str, Callable[[House], object]] = {
        "places that derive data flow": lambda house: len(house.data_flow),
        "forward simulations": lambda house: len(house.simulations),
        "files with memory arithmetic": lambda house: len(house.memory),
        "module-level constants in solver/": lambda house: len(house.constants),
        "circles of imports, modules in each": lambda house: _sizes(house, door=True),
        "the same without the lazy door": lambda house: _sizes(house, door=False),
        "public classes of one name": lambda house: len(house.classes),
        "public functions of one name in a room": lambda house: len(house.functions),
        "rooms": lambda house: len(house.rooms),
        "files of Python": lambda house: len(house.modules),
        "lines of Python": lambda house: sum(lines for _, lines in house.rooms.values()),
        "lines of solver/": lambda house: sum(
            lines for room, (_, lines) in house.rooms.items() if room.split("/")[0] == "solver"
        ),
    }
    rows = [(name, *(count(house) for house in houses.values())) for name, count in counts.items()]
    rooms = sorted({room for house in houses.values() for room in house.rooms})
    rows += [
        (f"`{room}`: files, lines", *(_figures(house, room) for house in houses.values()))
        for room in rooms
    ]
    return "\n".join(record.table(("", *houses), rows))


def _figures(house: House, room: str) -> str:
    files, lines = house.rooms.get(room, (0, 0))
    return f"{files}, {lines}" if files else ""


def _sizes(house: House, *, door: bool) -> str:
    sizes = [str(len(circle)) for circle in house.circles(door=door)]
    return f"{len(sizes)} ({', '.join(sizes)})" if sizes else "0"


def details(house: House) -> Iterator[str]:
    """Name what was counted."""
    for title, found in (
        ("Data flow", house.data_flow),
        ("Forward simulations", house.simulations),
        ("Memory arithmetic", house.memory),
    ):
        yield f"\n{title}:"
        yield from (f"- {one}" for one in found)
    yield "\nConstants, by module:"
    homes = Counter(name.rpartition(".")[0] for name in house.constants)
    yield from (f"- {home}: {count}" for home, count in homes.items())
    yield "\nCircles:"
    yield from (f"- {', '.join(circle)}" for circle in house.circles(door=True))
    yield "\nNames:"
    for names in (house.classes, house.functions):
        yield from (f"- {name}: {', '.join(homes)}" for name, homes in names.items())


def main() -> None:
    """Print the table, and of the last checkout what was counted."""
    here = Path(__file__).parents[1]
    trees = [Path(name) for name in sys.argv[1:]] or [here]
    houses = {tree.resolve().name: House(tree) for tree in trees}
    print(table(houses))
    for name, house in houses.items():
        print(f"\n## {name}")
        print(*details(house), sep="\n")


if __name__ == "__main__":
    main()
