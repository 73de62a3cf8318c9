"""The certificate of a flat system that is SAFE; `proof` checks it."""

from __future__ import annotations

from typing import Any

from amk.systems.document import to_json
from amk.systems.finding import without
from amk.systems.flat_judge import judge
from amk.systems.flat_system import FlatSystem
from amk.systems.proof import FORMAT, filled
from amk.systems.rule_evidence import evidence
from amk.systems.rule_reading import Refused
from amk.systems.verdict import judged
from amk.validator.export.certificate import NotSafe, make_certificate

Json = dict[str, Any]


def certificate(system: FlatSystem, safe: bool = False) -> Json:
    """Evidence for a SAFE system; raises `NotSafe` for any other, where `fence` has races that do not matter, and for
    barriers by phase, flags or proxies with relaxed operations. safe: `judged` said so already."""

    if system.rules is not None:
        return _with_rules(system, safe)
    systems = {"block": system.block}
    if system.word is not system.block:
        systems["word"] = system.word
    if system.edge_systems is not None:
        systems["fence"] = without(system.edge_systems.fence, system.edge_systems.unfenced)
    return {"format": FORMAT, "systems": {name: make_certificate(judge(one)) for name, one in systems.items()}}


def _with_rules(system: FlatSystem, safe: bool) -> Json:
    """Of a system with barriers by phase, flags or proxies."""

    if not safe and not judged(system).safe:
        raise NotSafe("the system is not safe")
    if not (system.acquires.all() and system.releases.all()):
        raise NotSafe("barriers by phase, flags and proxies with relaxed operations have no certificate")
    document = to_json(system)
    try:
        claims, extended_system = evidence(system, filled(document["systems"]["block"]), document["orders"])
    except Refused as reason:
        raise NotSafe(f"there is no certificate: {reason}") from reason
    return {"format": FORMAT, "rules": claims, "systems": {"block": make_certificate(judge(extended_system))}}
