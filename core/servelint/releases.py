"""Releases of engines, and the images that they are published as."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile


def release(version: str | None) -> tuple[int, ...]:
    """The numbers that a version text begins with, empty when it begins with none."""
    numbers = []
    for part in (version or "").lower().removeprefix("v").split(".")[:4]:
        digits = "".join(takewhile(str.isdecimal, part))
        if not digits or len(digits) > 6:
            break
        numbers.append(int(digits))
        if digits != part:
            break
    return tuple(numbers)


def repository(image: str) -> str:
    """An image without digest and tag, in lower case."""
    name = image.partition("@")[0]
    head, slash, last = name.rpartition("/")
    return (head + slash + last.partition(":")[0]).lower()


def tag(image: str) -> str:
    """The tag of an image, empty when it has none."""
    return image.partition("@")[0].rpartition("/")[2].partition(":")[2]


def published(image: str, repositories: Iterable[str]) -> bool:
    """Whether an image is of one of the repositories, named by parts of their names."""
    return any(part in repository(image) for part in repositories)


def image_release(image: str, repositories: Iterable[str]) -> str | None:
    """The release that the tag of an engine's own image names, None when it names none.

    ``repositories`` are those whose tags are releases of the engine: the tag of another project's image is none.
    """
    numbers = release(tag(image)) if published(image, repositories) else ()
    return ".".join(map(str, numbers)) if len(numbers) >= 2 else None
