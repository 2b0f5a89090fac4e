"""A spec file: its text, what the TOML parser made of it, the structured deployment, and where things stand.

Everything that is wrong in a file is found in one pass. Spans are scanned only when something has to be
located.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import tomli

from servelint import toml
from servelint.blame import ends_run
from servelint.descriptors import Policy
from servelint.lineage import KeyPath
from servelint.place import Place
from servelint.spec.model import Deployment
from servelint.spec.schema import Problem, Problems, kinds, structure_table, unknown_key
from servelint.spec.spans import Comment, LineIndex, Span, SpanMap, scan

if TYPE_CHECKING:
    from servelint.launch.invocation import Setting, Trouble
    from servelint.launch.reading import Launched
    from servelint.launch.spec import Contradiction

VERSION = 1
MAX_BYTES = 1_000_000
"""Larger files are not specs; the limit keeps a hostile one from costing time and memory."""

MOST_PROBLEMS = 1000
"""A file with more of them is no spec either; reports of tens of thousands would take seconds."""


class Document:
    """One spec, or one manifest read as a spec.

    ``deployment`` is None when ``problems`` kept it from being structured. ``launched`` is what the launch
    arguments say that the spec names (`servelint.launch.spec`): ``settings`` are the keys that only they set, each
    with its place in ``texts``, the files that they stand in; ``contradictions`` the keys that both set. ``failed``
    holds what the classes of policy tables raised, by policy: no problem of the spec, but their plugins' faults.
    """

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text
        self.data: dict[str, Any] = {}
        self.deployment: Deployment | None = None
        self.problems: list[Problem] = []
        self.failed: dict[str, BaseException] = {}
        self.syntax_place: Place | None = None
        self.manifest = False
        self.launched: Launched | None = None
        self.settings: Mapping[KeyPath, Setting] = {}
        self.contradictions: tuple[Contradiction, ...] = ()
        self.texts: dict[str, str] = {}

    @property
    def names_arguments(self) -> bool:
        """Whether the spec names launch arguments, which may set keys of it."""
        engine = self.deployment.engine if self.deployment is not None else None
        return engine is not None and (bool(engine.args) or engine.args_from is not None or bool(engine.env))

    @cached_property
    def spans(self) -> SpanMap:
        """Spans of every key and value; empty when the text is not valid TOML."""
        return scan(self.text if self.syntax_place is None and not self.manifest else "")

    @property
    def comments(self) -> tuple[Comment, ...]:
        """Comments of the file: every one of a spec; of a manifest, whose text is no TOML, those for servelint."""
        if not self.manifest:
            return self.spans.comments
        return _manifest_comments(self.text)

    @cached_property
    def lines(self) -> LineIndex:
        """Line and column of offsets."""
        return _line_index(self.text)

    def place(self, path: KeyPath, *, on_key: bool = False) -> Place:
        """Return where a key path stands: its value, else its key, else its table, else the file's start.

        A key that launch arguments set stands where they do, which may be another file; what an instance type
        stands for is where the instance type is.
        """
        if self.syntax_place is not None:
            return self.syntax_place
        if path in OF_INSTANCE and not self.has(path) and self.has(INSTANCE):
            path = INSTANCE
        if self.launched is not None and path[:2] == ARGUMENTS and len(path) == 3 and path[2] in self._troubles:
            return self._troubles[str(path[2])].place
        if self.settings:
            for length in (len(path), 3, 2, 1, 0):
                set_by = self.settings.get(path[:length])
                if set_by is not None:
                    return set_by.place
        span = self.spans.key(path) if on_key else None
        return self.span_place(span or self.spans.best(path))

    def points_at(self, path: KeyPath) -> bool:
        """Whether a manifest, where it stands for a spec, says something of a key path; of a spec it is always so.

        What the command line gives, such as the hardware, stands nowhere: `place` then is that of the invocation.
        """
        if not self.manifest or self.launched is None:
            return True
        return any(path[: len(key)] == key or key[: len(path)] == path for key in self.launched.settings)

    def origin(self, path: KeyPath) -> Place:
        """Return where the value that counts stands: of a key that launch arguments set otherwise, theirs."""
        return next((c.setting.place for c in self.contradictions if c.runs and c.path == path), None) or self.place(
            path
        )

    def line_text(self, place: Place) -> str:
        """The line that a place begins on."""
        if not place.file:
            return self.lines.line_text(place.line)
        if place.file not in self._other_lines:
            self._other_lines[place.file] = LineIndex(self.texts.get(place.file, ""))
        return self._other_lines[place.file].line_text(place.line)

    @cached_property
    def _troubles(self) -> dict[str, Trouble]:
        return {} if self.launched is None else self.launched.named_troubles()

    @cached_property
    def _other_lines(self) -> dict[str, LineIndex]:
        return {}

    def span_place(self, span: Span) -> Place:
        """Return lines and columns of a span."""
        line, column = self.lines.position(span.start)
        end_line, end_column = self.lines.position(span.end)
        return Place(line, column, end_line, end_column)

    def value(self, path: KeyPath) -> object:
        """Return the raw TOML value at a key path, None if there is none."""
        found: Any = self.data
        for part in path:
            try:
                found = found[part]
            except (KeyError, IndexError, TypeError):
                return None
        return found

    def has(self, path: KeyPath) -> bool:
        """Tell whether the spec sets a key path."""
        return self.value(path) is not None


@lru_cache(maxsize=2)
def _line_index(text: str) -> LineIndex:
    """Lines of a text; the engines of one manifest share them."""
    return LineIndex(text)


@lru_cache(maxsize=2)
def _manifest_comments(text: str) -> tuple[Comment, ...]:
    found = re.finditer(r"(?:^|(?<=\s))#[ \t]*servelint:[^\n]*", text)
    return tuple(Comment(Span(m.start(), m.end()), m[0].rstrip("\r")) for m in found)


ARGUMENTS = ("engine", "args")
INSTANCE = ("hardware", "instance")
OF_INSTANCE = tuple(("hardware", key) for key in ("accelerator", "devices", "devices_per_node", "network"))
"""Keys that an instance type stands for where they are left out."""

_AT = r"\(at line (\d+), column (\d+)\)|\(at end of document\)"


def parse(name: str, text: str, policies: tuple[Policy, ...]) -> Document:
    """Parse and structure a spec; what is wrong is in ``problems``, nothing is raised."""
    document = Document(name, text)
    if len(text) > MAX_BYTES:
        document.problems.append(
            Problem("SPEC001", (), f"the file has more than {MAX_BYTES:,} characters, the most that a spec may have")
        )
        document.syntax_place = Place(1, 1, 1, 1)
        return document
    plain = text.removeprefix("\ufeff").replace("\r\n", "\n")
    try:
        document.data = toml.loads(plain)
    except tomli.TOMLDecodeError as error:
        _syntax_error(document, plain, error)
        return document
    except (RecursionError, ValueError) as error:
        # tomli limits neither nesting nor the digits of an integer; CPython does.
        document.problems.append(Problem("SPEC001", (), f"this TOML cannot be read: {_plain(error)}"))
        document.syntax_place = Place(1, 1, 1, 1)
        return document
    structure(document, policies)
    return document


def _plain(error: Exception) -> str:
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)


def _syntax_error(document: Document, plain: str, error: tomli.TOMLDecodeError) -> None:
    # Imported only when something is wrong.
    from servelint.spec.syntax import explained

    message = str(error)
    match = re.search(_AT, message)
    lines = document.lines
    if match and match[1]:
        line, column = int(match[1]), int(match[2])
    else:
        line, column = lines.position(len(document.text))
    document.syntax_place = Place(line, column, line, column + 1)
    what = explained(plain, error.pos, re.sub(_AT, "", message).strip().rstrip("."))
    document.problems.append(Problem("SPEC001", (), f"this is not valid TOML: {what}"))


def structure(document: Document, policies: tuple[Policy, ...]) -> None:
    """Make the deployment of a document's ``data``, or say in its ``problems`` what is wrong."""
    data = dict(document.data)
    version = data.pop("servelint", None)
    problems = document.problems
    if version is None:
        problems.append(Problem("SPEC003", (), 'the key "servelint" is missing: expected servelint = 1 at the top'))
    elif version != VERSION or isinstance(version, bool):
        problems.append(
            Problem(
                "SPEC003",
                ("servelint",),
                f"this servelint reads spec version {VERSION}, found {version!r:.40}"
                + (": write it without quotes" if version == str(VERSION) else ""),
            )
        )
    tables = data.pop("policy", {})
    configs = _structure_policies(tables, policies, document)
    deployment = None
    known = (*kinds(Deployment), "policy", "servelint")
    unknown = [name for name in data if name not in known]
    for name in unknown:
        problems.append(unknown_key(name, known))
        del data[name]
    try:
        deployment = structure_table(Deployment, data)
    except Problems as error:
        problems += error.problems
    if len(problems) > MOST_PROBLEMS:
        left = problems[MOST_PROBLEMS]
        message = f"{len(problems) - MOST_PROBLEMS:,} more problems of this file, from here on, are not listed"
        problems[MOST_PROBLEMS:] = [Problem(left.code, left.path, message, left.on_key)]
    if any(problem.known for problem in problems):
        from servelint.spec.hints import with_hints

        problems[:] = with_hints(problems, policies)
    if deployment is not None and not problems:
        # attrs.evolve would run every converter again; the class has none.
        document.deployment = Deployment(
            **{name: getattr(deployment, name) for name, _, _ in kinds(Deployment).values()}, policies=configs
        )


def _structure_policies(tables: object, policies: tuple[Policy, ...], document: Document) -> dict[str, Any]:
    configs: dict[str, Any] = {}
    problems = document.problems
    if not isinstance(tables, Mapping):
        problems.append(Problem("SPEC003", ("policy",), "expected tables [policy.NAME]"))
        return configs
    known = {policy.name: policy for policy in policies}
    for name, table in tables.items():
        policy = known.get(name)
        if policy is None:
            message = f'no plugin provides the policy "{name[:80]}"'
            problems.append(Problem("SPEC004", ("policy", name), message, True, tuple(known)))
            continue
        try:
            configs[name] = structure_table(policy.config, table)
        except Problems as error:
            problems += [p._replace(path=("policy", name, *p.path)) for p in error.problems]
        except BaseException as error:
            # The class of the table is its plugin's: the spec need not be wrong.
            if ends_run(error):
                raise
            document.failed[name] = error
    return configs
