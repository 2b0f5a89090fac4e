"""Python files that start engines, read as syntax and never run: Ray Serve's language models, Modal, subprocesses.

A small evaluation follows constants: texts, numbers, lists, mappings, f-strings, what an environment variable is
when it is not set. Everything else becomes a variable that nothing sets.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from servelint.launch.invocation import Hint, Invocation, Word
from servelint.launch.manifest import ManifestError, ManifestFile
from servelint.place import Place
from servelint_plugins.manifests import common, pods

if TYPE_CHECKING:
    import ast

SOURCES = (
    "ray-project/ray python/ray/llm/_internal/serve/core/configs/llm_config.py",
    "modal-labs/modal-client modal/app.py",
)
MOST_STEPS = 20_000
"""Statements and expressions that are followed; a file beyond that was written by no hand."""

MOST_CHARACTERS = 100_000
"""Characters of a text, and items of a list, beyond which nothing is followed."""

MOST_MADE = 300_000
"""Characters and items of everything that is made while a file is followed."""

CLASSES = ("LLM", "AsyncEngineArgs", "EngineArgs")
"""Classes of vLLM whose keywords are its arguments."""


class _Unknown:
    """What cannot be told without running the file."""


UNKNOWN = _Unknown()


class _Command(list[Any]):
    """A list with the node of each item, for its place."""

    def __init__(self, items: list[Any], nodes: list[ast.expr]) -> None:
        super().__init__(items)
        self.nodes = nodes


def read(file: ManifestFile) -> Iterator[Invocation]:
    """Yield the engines that a Python file starts. Raises ManifestError for a file that is no Python."""
    if not any(part in file.text for part in ("vllm", "sglang", "trtllm", "LLMConfig", "text-generation")):
        return
    import ast
    import warnings

    try:
        with warnings.catch_warnings():
            # What the parser finds odd of a text is no concern of who reads it.
            warnings.simplefilter("ignore")
            tree = ast.parse(file.text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None) or 1
        raise ManifestError(f"it is not valid Python: {error}", Place(line, 1, line, 2, file.file)) from None
    reader = _Reader(file, ast)
    try:
        reader.block(tree.body)
    except RecursionError:
        raise ManifestError("it is nested too deeply", Place(1, 1, 1, 1, file.file)) from None
    yield from reader.found()


class _Reader:
    def __init__(self, file: ManifestFile, ast_: Any) -> None:
        self.file = file
        self.ast = ast_
        self.values: dict[str, Any] = {}
        self.steps = 0
        self.made = 0
        self.starts = [0, *(match.end() for match in re.finditer(r"\r\n|\r|\n", file.text))]
        self._marks: dict[int, tuple[list[int], list[int]]] = {}
        self.models: list[tuple[ast.Call, dict[str, Any], Mapping[str, ast.expr]]] = []
        self.engines: list[tuple[ast.Call, dict[str, Any], Mapping[str, ast.expr]]] = []
        self.commands: list[_Command] = []
        self.texts: list[tuple[str, ast.expr]] = []
        self.devices: list[tuple[str, ast.expr]] = []
        self.images: list[tuple[str, ast.expr]] = []

    def fits(self, size: int) -> bool:
        """Count what is about to be made; whether it is still within what a file may make."""
        self.made += size
        return self.made <= MOST_MADE

    # Statements, in order; the bodies of functions and classes count as run once.

    def block(self, statements: list[ast.stmt]) -> None:
        for statement in statements:
            self.statement(statement)

    def statement(self, node: ast.stmt) -> None:
        ast = self.ast
        self.steps += 1
        if self.steps > MOST_STEPS:
            return
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for decorator in node.decorator_list:
                self.value(decorator)
            self.block(node.body)
        elif isinstance(node, ast.Assign):
            value = self.value(node.value)
            for target in node.targets:
                self.assign(target, value)
        elif isinstance(node, ast.AnnAssign):
            if node.value is not None:
                self.assign(node.target, self.value(node.value))
        elif isinstance(node, ast.AugAssign):
            self.augment(node)
        elif isinstance(node, ast.Expr):
            self.value(node.value)
        elif isinstance(node, ast.Return):
            if node.value is not None:
                self.value(node.value)
        elif isinstance(node, ast.For):
            self.loop(node)
        elif isinstance(node, ast.If | ast.While):
            known = self.value(node.test)
            if known is UNKNOWN or known:
                self.block(node.body)
            if known is UNKNOWN or not known:
                self.block(node.orelse)
        elif isinstance(node, ast.With | ast.AsyncWith | ast.Try):
            self.block(node.body)

    def assign(self, target: ast.expr, value: Any) -> None:
        ast = self.ast
        if isinstance(target, ast.Name):
            self.values[target.id] = value
        elif isinstance(target, ast.Tuple) and isinstance(value, list | tuple) and len(target.elts) == len(value):
            for part, item in zip(target.elts, value, strict=True):
                self.assign(part, item)
        elif isinstance(target, ast.Subscript):
            held, key = self.value(target.value), self.value(target.slice)
            if isinstance(held, dict) and isinstance(key, str):
                held[key] = value

    def augment(self, node: ast.AugAssign) -> None:
        held = self.value(node.target)
        value = self.value(node.value)
        if isinstance(held, _Command) and isinstance(value, list | tuple):
            if len(held) + len(value) > MOST_CHARACTERS or not self.fits(len(value)):
                return
            held.nodes += value.nodes if isinstance(value, _Command) else [node.value] * len(value)
            held += list(value)
        elif isinstance(held, dict) and isinstance(value, dict):
            held |= value if self.fits(len(value)) else {}
        elif isinstance(held, str) and isinstance(value, str):
            self.assign(node.target, self._joined((held, value)))

    def loop(self, node: ast.For) -> None:
        values = self.value(node.iter)
        if isinstance(values, list | tuple) and len(values) <= 200:
            for item in values:
                self.assign(node.target, item)
                self.block(node.body)
        else:
            self.block(node.body)

    # Expressions

    def value(self, node: ast.expr) -> Any:
        self.steps += 1
        if self.steps > MOST_STEPS:
            return UNKNOWN
        kind = type(node).__name__
        method: Callable[[Any], Any] | None = getattr(self, f"_{kind.lower()}", None)
        return method(node) if method is not None else UNKNOWN

    def _constant(self, node: ast.Constant) -> Any:
        if isinstance(node.value, str):
            self.texts.append((node.value, node))
        # No setting has so many digits, and no text is made of them.
        return UNKNOWN if isinstance(node.value, int) and node.value.bit_length() > 64 else node.value

    def _name(self, node: ast.Name) -> Any:
        return self.values.get(node.id, UNKNOWN)

    def _list(self, node: ast.List) -> Any:
        items: list[Any] = []
        nodes: list[ast.expr] = []
        for element in node.elts:
            if isinstance(element, self.ast.Starred):
                inner = self.value(element.value)
                if isinstance(inner, list | tuple) and self.fits(len(inner)) and len(items) < MOST_CHARACTERS:
                    items += inner
                    nodes += inner.nodes if isinstance(inner, _Command) else [element] * len(inner)
            else:
                items.append(self.value(element))
                nodes.append(element)
        return self._command_of(items, nodes)

    def _command_of(self, items: list[Any], nodes: list[ast.expr]) -> Any:
        if not self.fits(len(items)):
            return UNKNOWN
        made = _Command(items, nodes)
        self.commands.append(made)
        return made

    def _joined(self, parts: Iterable[Any], between: str = "") -> Any:
        """The parts as one text; unknown where one has no text of its own, or it would grow too long."""
        texts = []
        size = 0
        for part in parts:
            if not isinstance(part, str | int | float | None):
                return UNKNOWN
            texts.append(str(part))
            size += len(texts[-1]) + len(between)
            if size > MOST_CHARACTERS:
                return UNKNOWN
        return between.join(texts) if self.fits(size) else UNKNOWN

    def _tuple(self, node: ast.Tuple) -> Any:
        return tuple(self.value(e) for e in node.elts)

    def _dict(self, node: ast.Dict) -> Any:
        made: dict[str, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            held = self.value(value)
            if key is None:
                made |= held if isinstance(held, dict) and self.fits(len(held)) else {}
                continue
            name = self.value(key)
            if isinstance(name, str | int):
                made[str(name)] = held
        return made

    def _joinedstr(self, node: ast.JoinedStr) -> Any:
        parts = []
        for part in node.values:
            # A part by itself is no command.
            value = part.value if isinstance(part, self.ast.Constant) else self.value(part)
            known = isinstance(value, str | int | float | None)
            parts.append(value if known else "${" + self._shown(part) + "}")
        text = self._joined(parts)
        if isinstance(text, str):
            self.texts.append((text, node))
        return text

    def _formattedvalue(self, node: ast.FormattedValue) -> Any:
        return self.value(node.value)

    def _shown(self, node: ast.expr) -> str:
        inner = node.value if isinstance(node, self.ast.FormattedValue) else node
        return inner.id if isinstance(inner, self.ast.Name) else "value"

    def _binop(self, node: ast.BinOp) -> Any:
        ast = self.ast
        left, right = self.value(node.left), self.value(node.right)
        if isinstance(node.op, ast.Add):
            if isinstance(left, str) and isinstance(right, str):
                return self._joined((left, right))
            if isinstance(left, _Command) and isinstance(right, list) and len(left) + len(right) < MOST_CHARACTERS:
                nodes = right.nodes if isinstance(right, _Command) else [node] * len(right)
                return self._command_of([*left, *right], [*left.nodes, *nodes])
        if isinstance(node.op, ast.BitOr) and isinstance(left, dict) and isinstance(right, dict):
            return {**left, **right} if self.fits(len(left) + len(right)) else UNKNOWN
        if isinstance(node.op, ast.Div) and isinstance(left, str) and isinstance(right, str):
            return self._joined((left, right), "/")
        numbers = all(isinstance(v, int | float) and not isinstance(v, bool) and abs(v) < 1e15 for v in (left, right))
        if numbers and isinstance(node.op, ast.Add | ast.Sub | ast.Mult):
            return {"Add": left + right, "Sub": left - right, "Mult": left * right}[type(node.op).__name__]
        return UNKNOWN

    def _unaryop(self, node: ast.UnaryOp) -> Any:
        value = self.value(node.operand)
        if isinstance(node.op, self.ast.Not):
            return UNKNOWN if value is UNKNOWN else not value
        if isinstance(node.op, self.ast.USub) and isinstance(value, int | float):
            return -value
        return UNKNOWN

    def _ifexp(self, node: ast.IfExp) -> Any:
        known = self.value(node.test)
        return UNKNOWN if known is UNKNOWN else self.value(node.body if known else node.orelse)

    def _subscript(self, node: ast.Subscript) -> Any:
        held, key = self.value(node.value), self.value(node.slice)
        if isinstance(held, dict) and isinstance(key, str):
            return held.get(key, UNKNOWN)
        if isinstance(held, list | tuple) and isinstance(key, int) and -len(held) <= key < len(held):
            return held[key]
        return UNKNOWN

    def _await(self, node: ast.Await) -> Any:
        return self.value(node.value)

    def _call(self, node: ast.Call) -> Any:
        on = node.func.value if isinstance(node.func, self.ast.Attribute) else None
        name: str = getattr(node.func, "id" if on is None else "attr", "")
        keywords: dict[str, Any] = {}
        nodes: dict[str, ast.expr] = {}
        for keyword in node.keywords:
            value = self.value(keyword.value)
            if keyword.arg is None:
                keywords |= value if isinstance(value, dict) else {}
                nodes |= dict.fromkeys(value, keyword.value) if isinstance(value, dict) else {}
            else:
                keywords[keyword.arg] = value
                nodes[keyword.arg] = keyword.value
        held = self.value(on) if on is not None else None
        arguments = [self.value(a) for a in node.args]
        if isinstance(keywords.get("gpu"), str):
            self.devices.append((keywords["gpu"], nodes["gpu"]))
        if name == "from_registry" and arguments and isinstance(arguments[0], str):
            self.images.append((arguments[0], node.args[0]))
        if name == "LLMConfig":
            self.models.append((node, keywords, nodes))
        elif name in CLASSES:
            self.engines.append((node, keywords, nodes))
        return self._result(name, held, arguments, keywords, node)

    def _result(self, name: str, held: Any, arguments: list[Any], keywords: dict[str, Any], node: ast.Call) -> Any:
        first = arguments[0] if arguments else UNKNOWN
        if name == "dict":
            given = first if isinstance(first, dict) and self.fits(len(first)) else {}
            return {**given, **keywords}
        if name in ("get", "getenv"):
            if isinstance(held, dict) and isinstance(first, str):
                return held.get(first, arguments[1] if len(arguments) > 1 else None)
            # What the environment would hold is not known; a default is what the file itself says.
            return arguments[1] if len(arguments) > 1 else UNKNOWN
        if name in ("str", "int", "float") and len(arguments) == 1 and first is not UNKNOWN:
            try:
                return self._joined((first,)) if name == "str" else {"int": int, "float": float}[name](first)
            except (TypeError, ValueError, OverflowError):
                return UNKNOWN
        if name == "dumps" and isinstance(first, dict | list):
            return self._dumped(first)
        if name == "items" and isinstance(held, dict):
            return list(held.items()) if self.fits(len(held)) else UNKNOWN
        if name == "join" and isinstance(held, str) and isinstance(first, list | tuple):
            text = self._joined((a for a in first if isinstance(a, str | int | float)), held)
            if isinstance(text, str):
                self.texts.append((text, node))
            return text
        if name == "split" and isinstance(held, str):
            parts = held.split()
            return self._command_of(list(parts), [node] * len(parts))
        if name in ("extend", "append") and isinstance(held, _Command):
            more = list(first) if name == "extend" and isinstance(first, list | tuple) else [first]
            if len(held) + len(more) > MOST_CHARACTERS or not self.fits(len(more)):
                return None
            held.nodes += first.nodes if isinstance(first, _Command) else [node] * len(more)
            held += more
            return None
        if name in ("update",) and isinstance(held, dict) and isinstance(first, dict):
            held |= first if self.fits(len(first)) else {}
            return None
        if name in ("strip", "lower", "upper") and isinstance(held, str) and self.fits(len(held)):
            return {"strip": held.strip, "lower": held.lower, "upper": held.upper}[name]()
        if name in ("Path", "deepcopy", "copy", "quote") and arguments:
            return first
        return UNKNOWN

    def _dumped(self, value: Any) -> Any:
        """A value as JSON; unknown where it holds itself, or more than an argument has."""
        left = MOST_CHARACTERS

        def plain(inner: Any, depth: int) -> Any:
            nonlocal left
            left -= len(inner) + 1 if isinstance(inner, str | list | tuple | dict) else 20
            if left < 0 or depth > 100:
                raise OverflowError
            if isinstance(inner, dict):
                return {key: plain(v, depth + 1) for key, v in inner.items()}
            if isinstance(inner, list | tuple):
                return [plain(v, depth + 1) for v in inner]
            return inner if isinstance(inner, str | int | float | None) else None

        try:
            text = json.dumps(plain(value, 0))
        except OverflowError:
            return UNKNOWN
        return text if self.fits(len(text)) else UNKNOWN

    # What was found

    def place(self, node: ast.expr) -> Place:
        start = node.col_offset
        end_line, end = node.end_lineno or node.lineno, node.end_col_offset or start
        return self.file.place(self._offset(node.lineno, start), self._offset(end_line, end))

    def _offset(self, line: int, column: int) -> int:
        """An offset in code points; the parser counts bytes, in lines that a carriage return ends, too."""
        begin = self.starts[line - 1]
        text = self.file.text[begin : self.starts[line] if line < len(self.starts) else None]
        if text.isascii():
            return begin + column
        if line not in self._marks:
            ends, gained, size = [], [0], 0
            for character in text:
                width = len(character.encode("utf-8", "replace"))
                size += width
                if width > 1:
                    ends.append(size)
                    gained.append(gained[-1] + width - 1)
            self._marks[line] = ends, gained
        ends, gained = self._marks[line]
        return begin + column - gained[bisect_right(ends, column)]

    def found(self) -> Iterator[Invocation]:
        from servelint_plugins.manifests.shell import PROGRAMS

        number = 0
        for call, keywords, nodes in self.models:
            yield self._ray(call, keywords, nodes)
            number += 1
        if number:
            return
        seen: set[tuple[str, ...]] = set()
        for command in self.commands:
            if not any(isinstance(v, str) and v.rpartition("/")[2] in PROGRAMS for v in command):
                continue
            pairs = zip(command, command.nodes, strict=True)
            yield from self._command(tuple(word for v, n in pairs for word in self._word(v, n)), seen)
        for text, node in self.texts:
            if " " in text and any(p in text for p in ("vllm", "sglang", "trtllm", "text-generation-launcher")):
                word = Word(text, self.place(node))
                try:
                    lines, _ = self.file.script(text)
                except ManifestError:
                    continue
                for line in lines:
                    yield from self._command(tuple(Word(w.text, word.place) for w in line), seen)
        if not seen:
            for call, keywords, nodes in self.engines:
                given = tuple(self._keywords(keywords, nodes, call))
                if given:
                    yield self._invocation("engine in Python", given, Word("vllm", self.place(call)))

    def _word(self, value: Any, node: ast.expr) -> tuple[Word, ...]:
        place = self.place(node)
        if isinstance(value, str):
            return (Word(value, place),)
        if isinstance(value, bool) or value is None or isinstance(value, dict | list | tuple):
            return ()
        if isinstance(value, int | float):
            return (Word(str(value), place),)
        return (Word("${" + self._shown(node) + "}", place),)

    def _command(self, words: tuple[Word, ...], seen: set[tuple[str, ...]]) -> Iterator[Invocation]:
        from servelint_plugins.manifests.shell import starts

        key = tuple(w.text for w in words)
        if not starts(words) or key in seen or pods.other((words,)):
            return
        # A command that is built up step by step is there in every stage; the last is what runs.
        if any(key == other[: len(key)] for other in seen):
            return
        seen.add(key)
        yield self._invocation(f"command on line {words[0].place.line}", words, None)

    def _invocation(self, name: str, words: tuple[Word, ...], engine: Word | None) -> Invocation:
        gpu = self._gpu()
        image = self.images[0] if self.images else None
        return Invocation(
            name,
            "python",
            words[0].place,
            part=(f"line {words[0].place.line}",),
            engine=engine,
            image=Word(image[0], self.place(image[1])) if image is not None else None,
            commands=(words,),
            devices=gpu[1],
            hints=gpu[0],
        )

    def _gpu(self) -> tuple[tuple[Hint, ...], Word | None]:
        if not self.devices:
            return (), None
        text, node = self.devices[-1]
        # The sign asks for exactly this part instead of a better one at the same price.
        word = Word(text.replace("!", ""), self.place(node))
        return (Hint("modal/gpu", word),), common.counted(word) or word._replace(text="1")

    def _keywords(self, keywords: Mapping[str, Any], nodes: Mapping[str, ast.expr], call: ast.Call) -> Iterator[Word]:
        for key, value in keywords.items():
            word = Word("", self.place(nodes.get(key, call)))
            name = common.kebab(key)
            if isinstance(value, bool):
                yield common.switch(name, word._replace(text=str(value)))
            elif isinstance(value, str | int | float):
                yield common.flag(name, word._replace(text=str(value)))
            elif isinstance(value, dict) and (text := self._dumped(value)) is not UNKNOWN:
                yield common.flag(name, word._replace(text=text))

    def _ray(self, call: ast.Call, keywords: Mapping[str, Any], nodes: Mapping[str, ast.expr]) -> Invocation:
        place = self.place(call)
        loading = keywords.get("model_loading_config")
        loading = loading if isinstance(loading, dict) else {}
        served, source = loading.get("model_id"), loading.get("model_source")
        model = source if isinstance(source, str) else served
        at = self.place(nodes["model_loading_config"]) if "model_loading_config" in nodes else place
        engine = keywords.get("engine_kwargs")
        inner = nodes.get("engine_kwargs")
        places = {k.arg: k.value for k in inner.keywords if k.arg} if isinstance(inner, self.ast.Call) else {}
        if isinstance(inner, self.ast.Dict):
            places = {k.value: v for k, v in zip(inner.keys, inner.values, strict=True) if k is not None}
        words = tuple(self._keywords(engine, places, call)) if isinstance(engine, dict) else ()
        accelerator = keywords.get("accelerator_type")
        hints: tuple[Hint, ...] = ()
        if isinstance(accelerator, str):
            hints = (Hint("ray/accelerator_type", Word(accelerator, self.place(nodes["accelerator_type"]))),)
        called = served if isinstance(served, str) else ""
        return Invocation(
            f"model {called}".rstrip(),
            "ray-serve",
            place,
            part=(called,) if called else (),
            engine=Word("vllm", place),
            commands=(words,) if words else (),
            model=common.hub(Word(model, at)) if isinstance(model, str) else None,
            hints=hints,
        )
