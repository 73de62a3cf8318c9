"""All single edits of a schedule's text, from its JSON Schema and the file itself.

Property: nothing here knows what a field means. A *site* is a value at a path with the part of the schema that
describes it. Its alternatives follow from that and from what occurs in the file:

* A name becomes every name of the file, of any namespace, and null where that is allowed.
* An integer takes the values of the same field elsewhere in the file, its neighbours, 0, 1, its negative and the bounds
  of its field. It also takes numbers about 2^31, 2^32 and beyond, as they are and added to what it was.
* An expression becomes every other expression of the file. Its coefficients vary as integers do. Each symbol becomes
  every other or is left out, and every other is added.
* An enumeration takes every value, a tag of a union every tag, a truth value the other one.
* An entry of an array is removed, doubled and exchanged with its neighbour. Where entries are small, every other entry
  of its kind in the file takes its place or comes beside it. Arrays are emptied.
* An optional key is left out. One that is absent counts as its default.

`further` has the single edits that these leave out:

* An integer or coefficient takes every integer of the file, and 3 * 2^32. A float takes every float.
* An optional key that is there is left out.
* An array or an object takes every other value of the same field.

`splits` gives an entry that others name a twin under a new name, which differs in one field or in none. One of those
who name the entry names the twin instead.

Cost: a document of 13 kB has some 10^4 to 10^5 edits, made one at a time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from amk.adversary.edits import Edit, Json, Path, apply, at

SMALL_ENTRIES = ("Wait", "Signal", "Chunk")
"""Definitions whose objects take each other's place."""
FAR = (2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**33, 2**64, -(2**31), -(2**32))
FARTHER = 3 * 2**32
BESIDE = (-8, -4, -2, -1, 1, 2, 4, 8)


@dataclass(frozen=True)
class Site:
    """field: definition and property, with [] for entries; schema: what describes the value there."""

    path: Path
    field: str
    schema: Json
    value: Json
    present: bool = True


@dataclass(frozen=True)
class Change:
    """kind: what was done to the field."""

    field: str
    kind: str
    edits: tuple[Edit, ...]

    @property
    def key(self) -> str:
        """One for each change of a document."""
        return json.dumps([[e.do, e.path, e.value] for e in self.edits], separators=(",", ":"))


class Neighbourhood:
    """The sites and changes of one document."""

    def __init__(self, document: Json, schema: Json) -> None:
        self._document, self._schema = document, schema

    @cached_property
    def sites(self) -> list[Site]:
        root = Site((), "Schedule", self._schema, self._document)
        return list(self._walk(root, "Schedule"))

    @cached_property
    def names(self) -> list[str]:
        """Every name that the file declares or uses, of whatever namespace; sentences are none."""
        named = {s.value for s in self.sites if isinstance(s.value, str) and _is_name(s.schema)}
        keys = {k for s in self.sites if isinstance(s.value, dict) and _open(s.schema) for k in s.value}
        return sorted(name for name in named | keys if not re.search(r"\s", name))

    @cached_property
    def _numbers(self) -> dict[str, list[int]]:
        """Integers by field."""
        found: dict[str, set[int]] = {}
        for site in self.sites:
            if type(site.value) is int:
                found.setdefault(site.field, set()).add(site.value)
        return {field: sorted(values) for field, values in found.items()}

    @cached_property
    def _every_number(self) -> dict[type, list[Json]]:
        """Integers and floats of all fields; coefficients are integers."""
        terms = [
            term
            for s in self.sites
            if isinstance(s.value, dict) and _is_expression(s.schema)
            for term in s.value.values()
        ]
        found = {
            kind: {v for v in [*(s.value for s in self.sites), *terms] if type(v) is kind} for kind in (int, float)
        }
        return {kind: sorted(values) for kind, values in found.items()}

    @cached_property
    def _composites(self) -> dict[str, list[Json]]:
        """Arrays and objects by field; expressions are values, not objects."""
        found: dict[str, list[Json]] = {}
        for site in self.sites:
            if site.present and isinstance(site.value, dict | list) and not _is_expression(site.schema):
                found.setdefault(site.field, []).append(site.value)
        return {field: _distinct(iter(values)) for field, values in found.items()}

    @cached_property
    def _expressions(self) -> list[Json]:
        return _distinct(s.value for s in self.sites if _is_expression(s.schema) and s.value is not None)

    @cached_property
    def _symbols(self) -> list[str]:
        tables = list(self._document["tables"])
        return [*tables, "1", "t", "l", "n", "worker", "agent"]

    @cached_property
    def _entries(self) -> dict[str, list[Json]]:
        """Values of the small entries, by field."""
        return {kind: _distinct(s.value for s in self.sites if s.schema.get("title") == kind) for kind in SMALL_ENTRIES}

    def changes(self) -> Iterator[Change]:
        """Every single edit, in the order of the text; no two are the same."""
        for site in self.sites:
            yield from self.at(site)

    def further(self) -> Iterator[Change]:
        """Every single edit that `changes` leaves out, in the order of the text; no two are the same."""
        for site in self.sites:
            yield from self.further_at(site)

    def further_at(self, site: Site) -> Iterator[Change]:
        """Those of one site."""
        seen = {change.key for change in self.at(site)}
        for change in self._further_of(site):
            if change.key not in seen:
                seen.add(change.key)
                yield change

    def splits(self) -> Iterator[Change]:
        """An entry with a name in two: a twin with at most one edit, which one user of the name uses."""
        named = [site for site in self.sites if site.path and isinstance(site.value, dict) and _named(site)]
        for entry in named:
            users = [site for site in self.sites if self._uses(site, entry)]
            for kind, field, twin in self._twins(entry):
                place = (*entry.path[:-1], len(self._array(entry)))
                for user in users:
                    edits = (Edit("replace", user.path, twin["name"]), Edit("insert", place, twin))
                    yield Change(f"{user.field}, {field}", f"split, {kind}", edits)

    def _array(self, entry: Site) -> Json:
        return at(self._document, entry.path[:-1])

    def _uses(self, site: Site, entry: Site) -> bool:
        """Is the site a name that is the entry's, outside of it."""
        inside = site.path[: len(entry.path)] == entry.path
        return site.value == entry.value["name"] and _is_name(site.schema) and not inside

    def _twins(self, entry: Site) -> Iterator[tuple[str, str, Json]]:
        """(what was done, to which field, the twin): as it is, then with each single edit but of its name."""
        root, name = len(entry.path), (*entry.path, "name")
        yield "as it is", entry.field, entry.value | {"name": f"{entry.value['name']}.twin"}
        for site in self.sites:
            if site.path[:root] != entry.path or site.path == name or site.path == entry.path:
                continue
            for change in self.at(site):
                moved = [Edit(edit.do, edit.path[root:], edit.value) for edit in change.edits]
                twin = apply(entry.value, moved)[0]
                yield change.kind, change.field, twin | {"name": f"{entry.value['name']}.twin"}

    def at(self, site: Site) -> Iterator[Change]:
        """The edits of one site; no two are the same."""
        seen: set[str] = set()
        for change in self._of(site) if site.path else ():
            if change.key not in seen:
                seen.add(change.key)
                yield change

    def _of(self, site: Site) -> Iterator[Change]:
        for kind, value in self._alternatives(site):
            if not _same(value, site.value):
                yield Change(site.field, kind, (_put(site, value),))
        if isinstance(site.value, list):
            yield from self._rearranged(site)
        if isinstance(site.value, dict) and _open(site.schema):
            yield from self._rekeyed(site)

    def _further_of(self, site: Site) -> Iterator[Change]:
        if isinstance(site.value, dict) and not _is_expression(site.schema):
            yield from self._left_out(site)
        for kind, value in self._further_values(site) if site.path else ():
            if not _same(value, site.value):
                yield Change(site.field, kind, (_put(site, value),))

    def _left_out(self, site: Site) -> Iterator[Change]:
        """Keys that an object need not have, where they say something else than their default."""
        branch = self._fitting(site.schema, site.value)
        for key, schema in branch.get("properties", {}).items():
            optional = key in site.value and key not in branch.get("required", ())
            if optional and not ("default" in schema and _same(schema["default"], site.value[key])):
                yield Change(f"{branch['title']}.{key}", "left out", (Edit("remove", (*site.path, key)),))

    def _further_values(self, site: Site) -> Iterator[tuple[str, Json]]:
        value = site.value
        yield from (("of the field", other) for other in self._composites.get(site.field, []))
        numbers = [("of another field", number) for number in self._every_number[int]] + [("far", FARTHER)]
        if _is_expression(site.schema):
            terms = value if isinstance(value, dict) else {"1": value or 0}
            for symbol, factor in terms.items():
                for kind, number in (*numbers, ("wrapped", factor + FARTHER)):
                    yield f"coefficient {kind}", number if list(terms) == ["1"] else terms | {symbol: number}
        elif any(branch.get("type") == "integer" for branch in _branches(site.schema)):
            yield from [*numbers, *([("wrapped", value + FARTHER)] if type(value) is int else [])]
        elif type(value) is float:
            yield from (("of another field", number) for number in self._every_number[float])

    def _alternatives(self, site: Site) -> Iterator[tuple[str, Json]]:
        schema = site.schema
        if _is_expression(schema):
            yield from self._other_expressions(site)
        for branch in _branches(schema):
            yield from self._of_branch(site, branch)
        if schema.get("title") in self._entries:
            yield from (("entry", entry) for entry in self._entries[schema["title"]])
        if "tags" in schema:
            yield from (("tag", site.value | {"op": tag}) for tag in schema["tags"])

    def _of_branch(self, site: Site, branch: Json) -> Iterator[tuple[str, Json]]:
        """Values that this branch of a union allows."""
        kind = branch.get("type")
        if "enum" in branch or "const" in branch:
            yield from (("enumeration", value) for value in branch.get("enum", [branch.get("const")]))
        elif kind == "null":
            yield "null", None
        elif kind == "string":
            yield from (("name", name) for name in self.names)
        elif kind == "boolean":
            yield from (("truth", True), ("truth", False))
        elif kind == "integer" and not _is_expression(site.schema):
            known = self._numbers.get(site.field, [])
            if type(site.value) is int:
                yield from self._other_integers(site.value, known, branch)
            elif site.value is None:
                yield from (("number", number) for number in (0, 1, *known, *FAR))
        elif kind == "number" and isinstance(site.value, float):
            yield from (("float", site.value * by) for by in (0.0, -1.0, 0.5, 2.0, 1e-30, 1e30, 1.001))

    def _other_integers(self, value: int, others: list[int], branch: Json) -> Iterator[tuple[str, int]]:
        yield from (("of the file", other) for other in others)
        yield from (("neighbour", value + by) for by in BESIDE)
        yield from (("small", number) for number in (0, 1, -1, -value))
        yield from (("scaled", number) for number in (2 * value, value // 2))
        yield from (("far", number) for number in FAR)
        yield from (("wrapped", value + by) for by in (2**31, 2**32, -(2**31), -(2**32), 2**33))
        for end, by in (("minimum", -1), ("maximum", 1)):
            if end in branch:
                yield from (("bound", branch[end]), ("bound", branch[end] + by))

    def _other_expressions(self, site: Site) -> Iterator[tuple[str, Json]]:
        yield from (("expression", other) for other in self._expressions)
        if site.value is None:
            return
        terms = {"1": site.value} if isinstance(site.value, int) else dict(site.value)
        for symbol, factor in terms.items():
            rest = {s: f for s, f in terms.items() if s != symbol}
            yield "term left out", rest or 0
            for kind, number in self._other_integers(factor, [], {}):
                yield f"coefficient {kind}", number if list(terms) == ["1"] else terms | {symbol: number}
            yield from (("symbol", rest | {other: factor}) for other in self._symbols if other not in terms)
        yield from (("term", terms | {other: 1}) for other in self._symbols if other not in terms)

    def _rearranged(self, site: Site) -> Iterator[Change]:
        """Entries removed, doubled, exchanged, added; the array emptied."""
        field, count = f"{site.field}[]", len(site.value)
        if not site.present:
            for entry in self._entries.get(_title(site.schema, self._schema), []):
                yield Change(field, "added", (_put(site, [entry]),))
            return
        for i, entry in enumerate(site.value):
            here = (*site.path, i)
            yield Change(field, "removed", (Edit("remove", here),))
            yield Change(field, "doubled", (Edit("insert", here, entry),))
            if i + 1 < count and not _same(entry, site.value[i + 1]):
                yield Change(field, "exchanged", (Edit("remove", here), Edit("insert", (*site.path, i + 1), entry)))
        if count > 1:
            yield Change(field, "emptied", (Edit("replace", site.path, []),))
        for entry in self._entries.get(_title(site.schema, self._schema), []):
            yield Change(field, "added", (Edit("insert", (*site.path, count), entry),))

    def _rekeyed(self, site: Site) -> Iterator[Change]:
        """Entries of an object with free keys: removed, called otherwise."""
        for key, value in site.value.items():
            here = (*site.path, key)
            yield Change(f"{site.field}{{}}", "removed", (Edit("remove", here),))
            for other in site.value:
                if other != key and not _same(value, site.value[other]):
                    yield Change(f"{site.field}{{}}", "exchanged", (
                        Edit("replace", here, site.value[other]), Edit("replace", (*site.path, other), value),
                    ))  # fmt: skip
        entries = self._entries.get(site.schema["additionalProperties"].get("$ref", "").rpartition("/")[2], [])
        for key in site.schema.get("propertyNames", {}).get("enum", []):
            for entry in entries if key not in site.value else []:
                yield Change(f"{site.field}{{}}", "added", (Edit("insert", (*site.path, key), entry),))

    def _walk(self, site: Site, within: str) -> Iterator[Site]:
        """The site and all inside; `within` is the definition that its field belongs to."""
        schema = self._resolved(site.schema, site.value)
        site = Site(site.path, site.field, schema, site.value, site.present)
        yield site
        value, described = site.value, schema
        if _is_expression(schema):
            return
        branch = self._fitting(described, value)
        if isinstance(value, dict):
            yield from self._inside_object(site, branch, within)
        elif isinstance(value, list):
            for i, entry in enumerate(value):
                inner = Site((*site.path, i), f"{site.field}[]", branch.get("items", {}), entry)
                yield from self._walk(inner, within)

    def _inside_object(self, site: Site, branch: Json, within: str) -> Iterator[Site]:
        title = branch.get("title", within)
        described = branch.get("properties", {})
        for key, value in site.value.items():
            free = key not in described
            field = f"{site.field}{{}}" if free else f"{title}.{key}"
            schema = branch.get("additionalProperties", {}) if free else described[key]
            yield from self._walk(Site((*site.path, key), field, schema, value), title)
        for key, schema in described.items():
            if key not in site.value and "default" in schema:
                inner = Site((*site.path, key), f"{title}.{key}", schema, schema["default"], present=False)
                yield from (
                    self._walk(inner, title)
                    if not isinstance(schema["default"], dict | list)
                    else [Site(inner.path, inner.field, self._resolved(schema, inner.value), inner.value, False)]
                )

    def _resolved(self, schema: Json, value: Json) -> Json:
        """The schema with its reference followed; a union of objects becomes the one that fits, with all tags."""
        if "$ref" in schema:
            return self._resolved(self._schema["$defs"][schema["$ref"].rpartition("/")[2]], value)
        union = schema.get("oneOf") or schema.get("anyOf")
        if not union or not isinstance(value, dict) or _is_expression(schema):
            return schema
        fitting = self._fitting(schema, value)
        tags = schema.get("discriminator", {}).get("mapping")
        return fitting | ({"tags": sorted(tags)} if tags and "op" in value else {})

    def _fitting(self, schema: Json, value: Json) -> Json:
        """The first branch of a union that the value fits, by its type and keys."""
        if "$ref" in schema:
            return self._fitting(self._schema["$defs"][schema["$ref"].rpartition("/")[2]], value)
        for branch in schema.get("oneOf") or schema.get("anyOf") or []:
            found = self._fitting(branch, value)
            if found and _fits(found, value):
                return found
        return {} if "oneOf" in schema or "anyOf" in schema else schema


TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}


def _fits(schema: Json, value: Json) -> bool:
    kind = schema.get("type")
    if kind == "integer":
        return type(value) is int
    if kind == "number":
        return isinstance(value, int | float)
    if kind is not None and not isinstance(value, TYPES[kind]):
        return False
    if not isinstance(value, dict) or "properties" not in schema:
        return True
    constants = {k: p["const"] for k, p in schema["properties"].items() if "const" in p}
    return (
        set(schema.get("required", ())) <= set(value) <= set(schema["properties"])
        and all(value.get(k, c) == c for k, c in constants.items())
    )  # fmt: skip


def _branches(schema: Json) -> list[Json]:
    return schema.get("anyOf") or schema.get("oneOf") or [schema]


def _is_expression(schema: Json) -> bool:
    """An integer, or integers by symbol."""
    kinds = [b.get("type") for b in schema.get("anyOf", [])]
    return kinds[:2] == ["integer", "object"]


def _is_name(schema: Json) -> bool:
    return any(b.get("type") == "string" and "enum" not in b and "const" not in b for b in _branches(schema))


def _open(schema: Json) -> bool:
    """Are the keys of the object names."""
    return isinstance(schema.get("additionalProperties"), dict)


def _named(site: Site) -> bool:
    """Is it an entry of an array that has a name."""
    return type(site.path[-1]) is int and isinstance(site.value.get("name"), str)


def _title(schema: Json, root: Json) -> str:
    """The definition of an array's entries."""
    return str(schema.get("items", {}).get("$ref", "")).rpartition("/")[2]


def _put(site: Site, value: Json) -> Edit:
    return Edit("replace" if site.present else "insert", site.path, value)


def _same(a: Json, b: Json) -> bool:
    return type(a) is type(b) and bool(a == b)


def _distinct(values: Iterator[Json]) -> list[Json]:
    """In the order of their text."""
    return [json.loads(text) for text in sorted({json.dumps(v, sort_keys=True) for v in values})]


def schema_of_schedules() -> Json:
    """What `amk schema` prints."""
    from amk.schedule_ir.schedule import Schedule

    return Schedule.model_json_schema()
