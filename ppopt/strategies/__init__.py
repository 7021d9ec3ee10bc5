"""Hand strategies: one file each, found by importing every module of this package."""

from ppopt.strategies.base import Options, Strategy, names, registry, resolve

__all__ = ["Options", "Strategy", "names", "registry", "resolve"]
