"""What can go wrong before a single case has run.

ConformanceError
├── RecipeError       a recipe file or set that cannot be used
├── ParameterError    a recipe parameter that nobody has, or that has no value
└── CapabilityError   nobody says what the target serves
"""

from __future__ import annotations


class ConformanceError(Exception):
    """Base of every error of this package."""


class RecipeError(ConformanceError):
    """Say which recipe file is wrong, and why."""

    def __init__(self, path: str, problem: str) -> None:
        self.path = path
        self.problem = problem
        super().__init__(f"{path}: {problem}")


class ParameterError(ConformanceError):
    """Say which recipe parameter is wrong, and why."""

    def __init__(self, name: str, problem: str) -> None:
        self.name = name
        self.problem = problem
        super().__init__(f"parameter {name}: {problem}")


class CapabilityError(ConformanceError):
    """Say why the target's capability document is not to be had from `source`."""

    def __init__(self, source: str, problem: str) -> None:
        self.source = source
        self.problem = problem
        super().__init__(f"capabilities of {source}: {problem}")
