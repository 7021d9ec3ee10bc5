"""What a setting is: its names, the form of its values, and where it belongs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum

from ppopt.problem.units import Unit


class Shape(Enum):
    """The form of a value in a file; the enum's value is the placeholder of its flag."""

    WHOLE = "N"
    """A whole number."""
    SECONDS = "SECONDS"
    """A number above 0."""
    NUMBER = "NUMBER"
    """One number."""
    WORKSPACE = "WORKSPACE"
    """One number, or a mapping from kinds of operations to numbers."""
    RECOMPUTE = "RECOMPUTE"
    """True or false, or a mapping of `time` and `activation`."""
    OFFLOAD = "OFFLOAD"
    """True or false, or a mapping of `time` and `memory`."""
    MODULES = "MODULES"
    """A list of modules, each a mapping."""
    NAMES = "NAMES"
    """Names separated by commas, or a list of them."""
    STAGES = "LIST"
    """One number for all stages, or a list with one number per stage."""
    PAIRS = "TIME|LIST"
    """The same, or a matrix [stage of F][stage of BW]."""
    PHASES = "PHASES"
    """A mapping from F and B to lists of phases."""
    LINKS = "TIME"
    """One number, or a matrix [from device][to device]."""
    LINK = "latency=TIME,bandwidth=RATE"
    """A mapping of `latency`, `bandwidth` and `backward`, or text of it."""
    DEVICES = "[LIST]"
    """True for `LIMIT_1F1B`, one number, or a list with one number per device."""
    SWITCHES = "true|LIST"
    """True or false for all stages, or a list with one of these per stage."""
    PER_DEVICE = "NUMBER|LIST"
    """One number for all devices, microbatches or slices, or a list with one number for each."""
    LENGTHS = "LENGTHS"
    """A list with one entry per microbatch: a whole number, or a list of these."""
    PLACEMENT = "NAME|LIST"
    """A name, or a list with the device of every stage."""
    LAYERS = "LAYERS"
    """A list of layers, each a mapping of its settings."""
    PARTITION = "RULE|COUNTS|LAYOUT"
    """The name of a rule, a list of layers per stage, or the text of a layout."""
    CHOICE = "NAME"
    """One of some words."""
    FLAG = ""
    """True or false."""
    COUNT = "COUNT"
    """A whole number above 0 of any size, perhaps written as 989e12."""
    FILES = "FILE"
    """One file name, or a list of them."""
    TRAINING = "TRAINING"
    """A mapping of sizes of a trainer to whole numbers."""
    LINE = "TEXT"
    """One line of text."""
    DATE = "DATE"
    """A date, or one line of text."""


class SettingScope(StrEnum):
    """The object to which a setting belongs."""

    PIPELINE = "pipeline"
    """A field of `ppopt.Pipeline`."""
    LAYER = "layer"
    """A field of `ppopt.Layer`."""
    RUN = "run"
    """An option of a command."""
    ABOUT = "about"
    """Documentation of a file."""


class Heading(StrEnum):
    """The group of a setting in the help of a command, in this order."""

    PIPELINE = "Pipeline"
    DERIVATION = "Derivation from a config.json"
    TIMES = "Times and links"
    MEMORY = "Memory"
    UNITS = "Units and throughput"
    STRATEGIES = "Strategies"
    SEARCH = "Search"
    OUTPUT = "Output"


@dataclass(frozen=True)
class Setting:
    """One setting: its names, its values, and its meaning."""

    field: str
    """Name in Python."""
    shape: Shape
    meaning: str
    """For the help of the flag, the JSON Schema and the table."""
    default: str | int | None = None
    """Value if it is not given, or a description of how it follows from others; None: none."""
    key: str = ""
    """Name in files, and with dashes on the command line; empty: that of the field."""
    aliases: tuple[str, ...] = ()
    """Other names, besides the field and the key."""
    scope: SettingScope = SettingScope.PIPELINE
    unit: Unit | None = None
    minimum: int | None = None
    """Smallest number; None: any."""
    choices: tuple[str | int, ...] = ()
    placeholder: str = ""
    """Placeholder of the flag; empty: that of the shape."""
    has_flag: bool = True
    own_flag: str = ""
    """Name on the command line if it is not that of files."""
    under: Heading | None = None
    """Its group in the help, if it does not follow from the unit and the part."""
    stored_as_is: bool = False
    """Whether schedule files have its value unchanged, unless it is the default of a pipeline.
    `ppopt.formats.pipeline_json` writes all others in forms of their own."""
    replaceable: bool = False
    """Whether a flag replaces it in the pipeline of a schedule file."""
    set_by_plan: bool = False
    """Whether a plan chooses it, or has it from its model or arguments. A plan from a pipeline
    takes all others from the pipeline."""
    of_parallelism: bool = False
    """Whether a plan over the parallelism takes it. Such a plan refuses all others."""

    @property
    def name(self) -> str:
        """The name in files."""
        return self.key or self.field

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that is accepted, the one of files first."""
        return tuple(dict.fromkeys((self.name, self.field, *self.aliases)))

    @property
    def has_value(self) -> bool:
        """Whether the default is a value, and not a description."""
        return isinstance(self.default, int) or self.default in self.choices

    @property
    def described(self) -> str:
        """The meaning, with the default if there is one."""
        return self.meaning if self.default is None else f"{self.meaning} (default: {self.default})"

    @property
    def heading(self) -> Heading:
        """Its group in the help of a command."""
        if self.under is not None:
            return self.under
        if self.scope is SettingScope.RUN:
            return Heading.SEARCH
        of_unit = {Unit.TIME: Heading.TIMES, Unit.MEMORY: Heading.MEMORY}
        return Heading.PIPELINE if self.unit is None else of_unit[self.unit]

    @property
    def flag(self) -> str:
        """The name on the command line."""
        return self.own_flag or f"--{self.name.replace('_', '-')}"
