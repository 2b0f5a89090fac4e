"""Rules and findings.

A rule is one small class: metadata as plain attributes, documentation in its docstring under fixed headings,
its own failing and passing specs, and one ``check`` over a composed deployment.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from servelint.lineage import Input, KeyPath

if TYPE_CHECKING:
    from servelint.review import Review

HEADINGS = ("What it checks", "Why it is bad", "The arithmetic", "How to fix", "Source")
"""Sections that every rule's docstring has, in this order."""


class Severity(IntEnum):
    """How bad a finding is: ``error`` cannot work, ``warning`` is a likely failure, ``info`` is advice."""

    INFO = 1
    WARNING = 2
    ERROR = 3

    def __str__(self) -> str:
        return self.name.lower()


class Related(NamedTuple):
    """Another place that a finding is about, with what is to be seen there."""

    path: KeyPath
    message: str


class Edit(NamedTuple):
    """Replace the value at a key path with new TOML text."""

    path: KeyPath
    text: str


class Fix(NamedTuple):
    """A change of the spec that removes the finding; unsafe when it changes what is deployed."""

    description: str
    edits: tuple[Edit, ...]
    safe: bool = False


class Finding(NamedTuple):
    """What a rule found, at a key path.

    ``message`` carries the deciding numbers, ``equation`` how they were computed, ``inputs`` where each
    came from, ``help`` the smallest change that satisfies the rule.
    """

    path: KeyPath
    message: str
    equation: str = ""
    inputs: tuple[Input, ...] = ()
    help: str = ""
    related: tuple[Related, ...] = ()
    fix: Fix | None = None
    severity: Severity | None = None
    confidence: str | None = None
    on_key: bool = False
    code: str = ""
    name: str = ""


class Lacks(NamedTuple):
    """An input that a rule would have needed; shown only on demand."""

    what: str


class Case(NamedTuple):
    """A spec that belongs to a rule.

    Lines on which this rule must report end in ``# expect: CODE``; a spec without such lines must stay
    silent. ``flip`` names one key and the TOML text that takes the finding away, and only it. ``files`` are
    files beside the spec, by relative name.
    """

    name: str
    spec: str
    flip: tuple[str, str] | None = None
    files: tuple[tuple[str, str], ...] = ()


class Option(NamedTuple):
    """A threshold that configuration can set under ``[rule.CODE]``, with its default and its meaning."""

    name: str
    default: float
    doc: str
    minimum: float = 0.0
    maximum: float = float("inf")


class Rule(ABC):
    """One check. Subclasses set the class attributes and implement `check`.

    ``weighs`` says that what it finds rests on the bits of a weight: where those are a guess, none of it is an error.
    """

    code: ClassVar[str] = ""
    name: ClassVar[str] = ""
    severity: ClassVar[Severity] = Severity.WARNING
    confidence: ClassVar[str] = "high"
    preview: ClassVar[bool] = False
    weighs: ClassVar[bool] = False
    questions: ClassVar[tuple[str, ...]] = ()
    options: ClassVar[tuple[Option, ...]] = ()
    failing: ClassVar[tuple[Case, ...]] = ()
    passing: ClassVar[tuple[Case, ...]] = ()

    def __init__(self, options: dict[str, float] | None = None) -> None:
        self._options = {o.name: o.default for o in self.options} | (options or {})

    def option(self, name: str) -> float:
        """Return the value of an option."""
        return self._options[name]

    @abstractmethod
    def check(self, review: Review) -> Iterable[Finding | Lacks]:
        """Yield findings, and what was lacking to decide."""

    @classmethod
    def summary(cls) -> str:
        """The first line of the documentation."""
        return (cls.__doc__ or "").strip().split("\n", 1)[0].rstrip(".")

    @classmethod
    def problem(cls) -> str:
        """Say what is wrong with the class's metadata, or return an empty string."""
        return misnamed(cls.code, cls.name)

    def report(self, finding: Finding) -> Finding:
        """Return the finding with this rule's code, name, and severity where it sets none."""
        return finding._replace(
            code=self.code,
            name=self.name,
            severity=finding.severity if finding.severity is not None else self.severity,
            confidence=finding.confidence or self.confidence,
        )


def misnamed(code: str, name: str) -> str:
    """Say what is wrong with a rule's code and name, or return an empty string."""
    if not code or not name:
        return "has no code or no name"
    letters = code.rstrip("0123456789")
    if not (letters.isalpha() and letters.isupper() and len(code) - len(letters) == 3):
        return f"has the code {code!r}; expected capitals and three digits, such as ACME001"
    if name != name.lower() or " " in name:
        return f"has the name {name!r}; expected lower case with dashes"
    return ""


class RuleEntry(NamedTuple):
    """A rule that is imported when a spec needs it.

    ``when`` are key paths of which a spec has to have one for the rule to have anything to say; a spec without
    them costs nothing, and the rule then lacks them. ``load`` gives the class, whose code, name and ``preview``
    are those of the entry.
    """

    code: str
    name: str
    load: Callable[[], type[Rule]]
    when: tuple[KeyPath, ...] = ()
    preview: bool = False


def collect(rule: Rule, review: Any) -> Iterator[Finding | Lacks]:
    """Run a rule and stamp its findings."""
    for item in rule.check(review):
        yield rule.report(item) if isinstance(item, Finding) else item
