"""ConCM (ICLR 2026) on the bench: the library's own engine, registered as a method like any other.

Here: this library's engine, which is not the paper's form. It adds a whitened metric, the views of the shots in
prototypes and spreads, a constant on novel scores and three quarters of prototype cosines in the score, and it differs
in the samples' noise, the scale of the cosines and the optimiser; `concm:published` is the paper's form.
"""

from concm.engine.concm import Engine
from concm.methods.registry import method


@method(
    "concm",
    title="ConCM: consistency-driven calibration and matching",
    paper="ICLR 2026",
    code="https://github.com/wire-wqz/ConCM",
)
class ConCMMethod(Engine):
    """The engine, whose memory on the bench is all of its state: the structure and the word vectors too."""

    @property
    def memory_bytes(self) -> int:
        """What the engine keeps of the data, the targets of its structure, and its attributes' word vectors."""
        words = 0 if self.calibrator is None else self.calibrator.get_buffer("vectors").nbytes
        return super().memory_bytes + self.structure.nbytes + words
