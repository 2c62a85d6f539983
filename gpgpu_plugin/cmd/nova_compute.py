# SPDX-License-Identifier: Apache-2.0
"""gpgpu-nova-compute: nova-compute if Nova is in another site directory.

Python finds ``nova.virt.gpgpu`` only beside Nova itself. Where a
distribution's packages put Nova elsewhere, this program adds the directory
of the plugin's installation to the package's path before Nova starts.
"""

from __future__ import annotations

import pathlib
import sys

import nova.virt

import gpgpu_plugin


def extend_path() -> None:
    """Make Python find ``nova.virt.gpgpu`` beside gpgpu_plugin."""
    folder = str(pathlib.Path(gpgpu_plugin.__file__).parent.parent
                 / 'nova' / 'virt')
    if folder not in nova.virt.__path__:
        nova.virt.__path__.append(folder)


def main() -> int:
    """Run nova-compute."""
    extend_path()
    # Nova sets up threads and logging when its program is imported.
    try:
        from nova.cmd import compute  # noqa: PLC0415
    except ModuleNotFoundError as exc:
        # Another missing module is an error of Nova's own installation.
        if exc.name not in ('nova', 'nova.cmd'):
            raise
        sys.stderr.write(
            f'gpgpu-nova-compute: Nova is not installed for '
            f'{sys.executable}; run the gpgpu-nova-compute of the Python '
            f'that has Nova\n')
        return 1
    return int(compute.main() or 0)


if __name__ == '__main__':
    sys.exit(main())
