"""Which files hold text made from records. In Markdown it stands between `<!-- NAME -->` and `<!-- /NAME -->`: lines of
its own, or words within a line."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from tests.readme import architecture, bars, gpus, guesses, quoted, records, speed

PICTURES = Path(__file__).parent / "pictures"
BOUND = "floor: bytes that the L2 does not hold, at the read rate of the same run"


README = records.ROOT / "README.md"
INDEX = records.RECORDS / "README.md"
SIMULATOR = records.ROOT / "amk" / "simulator" / "README.md"
LOWERING = records.ROOT / "amk" / "lowering" / "README.md"
ADVERSARIAL = records.ROOT / "adversarial" / "README.md"
SPECULATION = records.ROOT / "amk" / "api" / "speculation.md"
PREFILL = records.ROOT / "amk" / "prefill" / "README.md"
PARTS: dict[Path, Callable[[], str]] = {
    PICTURES / "architecture.svg": architecture.svg,
    PICTURES / "speed.svg": lambda: bars.svg(speed.groups(), "ms", BOUND),
    PICTURES / "guesses.svg": guesses.svg,
    README: lambda: _filled(README, {"speed": speed.section(), **quoted.readme()}),
    INDEX: lambda: _filled(INDEX, {"index": records.index()}),
    SIMULATOR: lambda: _filled(SIMULATOR, {"gpus": gpus.index()}),
    LOWERING: lambda: _filled(LOWERING, quoted.lowering()),
    ADVERSARIAL: lambda: _filled(ADVERSARIAL, quoted.adversarial()),
    SPECULATION: lambda: _filled(SPECULATION, {"measured": guesses.table()}),
    PREFILL: lambda: _filled(PREFILL, quoted.prefill()),
    **{path: partial(gpus.page, name) for path, name in gpus.pages().items()},
}
"""Every such file, and what makes its text."""


def _filled(path: Path, sections: Mapping[str, str]) -> str:
    text = path.read_text(encoding="utf-8")
    for name, body in sections.items():
        pattern = re.compile(rf"(<!-- {name} -->\n?).*?(<!-- /{name} -->)", re.DOTALL)
        text, count = pattern.subn(lambda m, body=body: f"{m[1]}{body}{m[2]}", text)
        if count != 1:
            raise ValueError(f"{path}: {count} sections '{name}'")
    return text
