"""Which picture formats are read, whatever a file is called."""

from __future__ import annotations

import warnings
from contextlib import suppress
from functools import cache
from pathlib import Path

from PIL import Image

FORMATS = ("JPEG", "MPO", "PNG", "GIF", "BMP", "TIFF", "WEBP", "AVIF", "HEIF", "JPEG2000", "PPM")
"""What is opened, whatever a file is called: no format whose reader runs another program."""
MISSING_HEIF = "it is a HEIC photo, which needs the extra 'heif' of concm"


@cache
def readable() -> tuple[str, ...]:
    """Those of `FORMATS` that this Pillow can read; its warnings of huge and of odd pictures are dropped."""
    warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
    warnings.filterwarnings("ignore", category=UserWarning, module="PIL")
    Image.init()
    with suppress(ImportError):
        from pillow_heif import register_heif_opener

        register_heif_opener(thumbnails=False)
    return tuple(name for name in FORMATS if name in Image.OPEN)


def is_heif(data: bytes | Path | Image.Image) -> bool:
    """Whether a file says that it is a HEIC photo, as phones take them."""
    head = data[:12] if isinstance(data, bytes) else b""
    if isinstance(data, Path) and data.is_file():
        with suppress(OSError), data.open("rb") as file:
            head = file.read(12)
    return head[4:8] == b"ftyp" and head[8:12] in (b"heic", b"heix", b"heim", b"heis", b"hevc", b"mif1", b"msf1")
