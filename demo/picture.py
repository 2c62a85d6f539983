# SPDX-License-Identifier: Apache-2.0
"""``python -m demo.picture PAGE PNG``: photograph a page, such as a map.

``tox -e picture`` makes the pages before, and installs Pillow. The description
of the page, if it has one, is stored in the picture, so that a test can tell
an old picture.
"""

from __future__ import annotations

import argparse
import io
import pathlib

from PIL import Image
from PIL import PngImagePlugin

from tests.fixtures import browser as browser_fixture

WIDTH = 1280
COLOURS = 256
"""Number of colours in the picture; it needs a third of the space so."""
_DESCRIPTION = 'document.querySelector("meta[name=description]")?.content'


def main() -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(prog='demo.picture', description=__doc__)
    parser.add_argument('page', type=pathlib.Path)
    parser.add_argument('picture', type=pathlib.Path)
    arguments = parser.parse_args()
    program = browser_fixture.program()
    if program is None:
        parser.error(f'none of {", ".join(browser_fixture.PROGRAMS)} is '
                     f'installed')
    with browser_fixture.Browser(program) as browser:
        browser.resize(WIDTH)
        browser.open(arguments.page.resolve())
        screenshot = io.BytesIO(browser.screenshot())
        description = browser.evaluate(_DESCRIPTION)
    notes = PngImagePlugin.PngInfo()
    if description is not None:
        notes.add_text('Description', description)
    with Image.open(screenshot) as picture:
        picture.convert('RGB').quantize(
            COLOURS, Image.Quantize.MAXCOVERAGE,
            dither=Image.Dither.NONE).save(
                arguments.picture, optimize=True, pnginfo=notes)
    print(f'{arguments.picture}: {arguments.picture.stat().st_size} bytes')


if __name__ == '__main__':
    main()
