"""ConCM (ICLR 2026) on the bench: the library's own engine, registered as a method like any other.

Here: this library's engine, which is not the paper's form. It adds a whitened metric for each reading, the views of the
shots in prototypes and spreads, prototypes completed by kinship of names in closed form and drawn to the base classes
that they look like, pictures whose largest coordinates count less, several projectors, an operating point found on
held-out base images and left-out shots, and 85 % of prototype cosines in the score. The paper's form is
`concm:published`, and that of its authors' code `concm:released`.
"""

from concm.engine.concm import Engine
from concm.methods.registry import method


@method(
    "concm",
    title="this library's engine, built on ConCM",
    paper="ICLR 2026",
    link="https://arxiv.org/abs/2506.19558",
    code="https://github.com/wire-wqz/ConCM",
)
class ConCMMethod(Engine):
    """The engine, whose memory on the bench is all of its state: the structure and the word vectors too."""

    @property
    def memory_bytes(self) -> int:
        """What the engine keeps of the data, the targets of its structure, and its attributes' word vectors."""
        words = 0 if self.calibrator is None else self.calibrator.get_buffer("vectors").nbytes
        return super().memory_bytes + self.structure.nbytes + words
