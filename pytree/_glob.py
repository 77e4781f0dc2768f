"""Globs over leaf paths, and renaming by them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

from ._path import parse_path

# Characters in a segment of a glob: a set, a run of stars, one character, a literal.
_PARTS = re.compile(r"\[(!?)([^/\]]+)\]|(\*+)|(\?)|([^*?\[]+)")


def match(globs: str | Iterable[str], path: str) -> bool:
    """Say whether any of the globs matches a leaf path.

    `*` stands for any text within a segment, `**` for any number of segments, none
    included, `?` for one character and `[a-c]`, `[!a-c]` for one of a set. Such
    characters in a key are percent-escaped in its path, so a glob finds them escaped.

    Raises ValueError for a set that is not closed.

    >>> match("params/**", "params/layers/0/w"), match(["*/w", "*/b"], "params/w")
    (True, True)
    """
    return compile_globs(globs)(path)


def compile_globs(globs: str | Iterable[str]) -> Callable[[str], bool]:
    """Return `match` for many paths.

    >>> [path for path in ("a/w", "a/b", "w") if compile_globs("**/w")(path)]
    ['a/w', 'w']
    """
    globs = (globs,) if isinstance(globs, str) else tuple(globs)
    regex = _compile(globs)
    return lambda path: regex.fullmatch(path) is not None


@lru_cache(maxsize=256)
def _compile(globs: tuple[str, ...]) -> re.Pattern[str]:
    if not globs:
        return re.compile(r"(?!)")
    return re.compile("|".join([f"(?:{_translate(glob)[0]})" for glob in globs]))


def _translate(glob: str) -> tuple[str, list[str]]:
    """Return a regular expression with a group for each wildcard, and the wildcards."""
    wildcards: list[str] = []
    regex = ""
    slash = ""
    segments = re.sub(r"(?<![^/])(\*\*/)+\*\*(?![^/])", "**", glob).split("/")
    if glob == "":
        return "", wildcards
    for i, segment in enumerate(segments):
        if segment == "**":
            wildcards.append("**")
            # A slash belongs to each segment, so that none leaves no stray one.
            if i == len(segments) - 1:
                regex += r"((?:/[^/]+)*)" if slash else r"((?:[^/]+(?:/[^/]+)*)?)"
            else:
                regex += slash + r"((?:[^/]+/)*)"
                slash = ""
        else:
            regex += slash + _translate_segment(segment, wildcards, glob)
            slash = "/"
    return regex, wildcards


def _translate_segment(segment: str, wildcards: list[str], glob: str) -> str:
    regex = ""
    end = 0
    for part in _PARTS.finditer(segment):
        if part.start() != end:
            break
        end = part.end()
        negated, members, star, one, text = part.groups()
        if text is not None:
            regex += re.escape(text)
            continue
        wildcards.append("*")
        if star is not None:
            regex += "([^/]+)" if star == segment else "([^/]*)"
        elif one is not None:
            regex += "([^/])"
        else:
            inner = re.sub(r"[^-]", lambda m: re.escape(m[0]), members)
            regex += f"((?!/)[{'^' if negated else ''}{inner}])"
    try:
        re.compile(regex)
    except re.error:
        end = -1
    if end != len(segment) or segment == "":
        raise ValueError(
            f"Expected a glob, found {glob!r}: the segment {segment!r} is empty or has "
            "a set that is not closed or runs backwards. Write `%5B` for a bracket in "
            "a key."
        )
    return regex


def rename_path(path: str, rules: Mapping[str, str]) -> str:
    """Return the path's new name by the first rule whose glob matches, else the path.

    What the wildcards match is put, from left to right, for the `*` and `**` of the
    new name; `**` takes the place of `**` only.

    Raises ValueError for a rule whose sides have different wildcards, and where the
    new name is no path.

    >>> rename_path("layers/3/w", {"layers/*/w": "blocks/*/kernel"})
    'blocks/3/kernel'
    >>> rename_path("old", {"old/**": "new/**"})
    'new'
    """
    for regex, pieces in [_compile_rule(old, new) for old, new in rules.items()]:
        found = regex.fullmatch(path)
        if found:
            return _fill(pieces, found.groups(), path)
    return path


def rename_paths(paths: Iterable[str], rules: Mapping[str, str]) -> dict[str, str]:
    """Return {path: new name}; ValueError, listing them, where two get one name.

    >>> rename_paths(["a/w", "b"], {"a/**": "c/**"})
    {'a/w': 'c/w', 'b': 'b'}
    """
    names = {path: rename_path(path, rules) for path in paths}
    if len(set(names.values())) < len(names):
        count = Counter(names.values())
        lines = [f"  {old} -> {new}" for old, new in names.items() if count[new] > 1]
        more = [f"  ... and {len(lines) - 20} more"] if len(lines) > 20 else []
        raise ValueError(
            "Expected a new name for each path, found paths that share one. "
            "Change the rules:\n" + "\n".join(lines[:20] + more)
        )
    return names


@lru_cache(maxsize=1024)
def _compile_rule(old: str, new: str) -> tuple[re.Pattern[str], list[str]]:
    regex, wildcards = _translate(old)
    pieces = re.split(r"((?<![^/])\*\*(?![^/])|\*)", new)
    if pieces[1::2] != wildcards or re.search(r"[?\[\]]", new):
        raise ValueError(
            f"Expected as many wildcards in {new!r} as in {old!r}, `**` for `**` and "
            f"`*` for any other, found {pieces[1::2]} for {wildcards}."
        )
    return re.compile(regex), pieces


def _fill(pieces: list[str], groups: tuple[str, ...], path: str) -> str:
    filled = list(pieces)
    filled[1::2] = [group.strip("/") for group in groups]
    name = "".join(filled)
    # Segments that `**` left empty go, with their slash.
    if "**" in pieces[1::2]:
        name = re.sub(r"/{2,}", "/", name).strip("/")
    try:
        parse_path(name)
    except ValueError as error:
        raise ValueError(
            f"Expected a rule that makes a path, found {name!r} for {path!r}. "
            "Escape the new name as format_path does."
        ) from error
    return name
