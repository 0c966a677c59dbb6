"""ConCM (ICLR 2026) on the stage: the library's own engine, registered as a method like any other."""

from concm.engine.concm import Engine
from concm.engine.settings import Settings
from concm.methods.registry import method

method(
    "concm",
    title="ConCM: consistency-driven calibration and matching",
    paper="ICLR 2026",
    settings=Settings,
)(Engine)
