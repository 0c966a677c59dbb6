"""Long jobs: how they are asked to stop."""

from __future__ import annotations

import signal

import pytest

from concm.progress import interruptible


def test_ctrl_c_is_put_on_a_list_and_a_second_one_breaks_off():
    with interruptible(signal.SIGINT) as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop == [signal.SIGINT]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_a_signal_that_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interruptible(signal.SIGINT, signal.SIGTERM) as stop:
            signal.raise_signal(signal.SIGINT)
            assert not stop
            signal.raise_signal(signal.SIGTERM)
        assert stop == [signal.SIGTERM]
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
