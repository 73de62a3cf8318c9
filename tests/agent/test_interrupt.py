"""Signals: the first interrupts at once, what is held is finished, and the handlers of before come back."""

import os
import signal

import pytest

from amk.agent.run.interrupt import SIGNALS, Interrupts


@pytest.mark.parametrize("signum", SIGNALS)
def test_every_signal_interrupts_what_is_not_held(signum: int, capfd: pytest.CaptureFixture[str]) -> None:
    before = [signal.getsignal(each) for each in SIGNALS]
    written = []
    with Interrupts() as interrupts:
        interrupts.check()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signum)
        with interrupts.hold():
            os.kill(os.getpid(), signum)
            written.append("report")
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signum)
    assert interrupts.count == 3 and interrupts.code == 128 + signum and written == ["report"]
    assert capfd.readouterr().err.count("interrupted") == 3
    assert [signal.getsignal(each) for each in SIGNALS] == before
