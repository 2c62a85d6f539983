# SPDX-License-Identifier: Apache-2.0
"""Runs in the fresh environment: import each module of the wheel.

Only those that Nova calls may need Nova. Prints what it found; whatever is
wrong ends it with a traceback.
"""

from __future__ import annotations

import importlib
import importlib.util
import pathlib
import sys

# Packages of which Nova is the only caller.
NOVA_ONLY = ('compute', 'nova_api', 'scheduler_filters', 'scheduler_weights',
             'virt')
# Nova itself and what comes with it: lxml, for the XML of libvirt.
OF_NOVA = ('nova', 'lxml')
# Alembic runs it, within "db sync"; nobody imports it.
SCRIPT = 'gpgpu_plugin.db.migrations.env'


def names() -> list[str]:
    """Return all modules of gpgpu_plugin, found but not imported."""
    spec = importlib.util.find_spec('gpgpu_plugin')
    assert spec and spec.origin
    package = pathlib.Path(spec.origin).parent
    assert sys.prefix in str(package), f'not of this environment: {package}'
    paths = (path.relative_to(package.parent).with_suffix('')
             for path in package.rglob('*.py'))
    return sorted('.'.join(path.parts).removesuffix('.__init__')
                  for path in paths)


def needs_nova(name: str) -> bool:
    """Import a module; return whether it fails because Nova is missing.

    :raises AssertionError: it fails, and may not
    """
    try:
        importlib.import_module(name)
    # Of "from nova import utils" only the name is missing: the wheel brings a
    # folder nova, without anything of Nova's.
    except ImportError as exc:
        missing = (exc.name or '').partition('.')[0]
        if missing not in OF_NOVA or name.split('.')[1] not in NOVA_ONLY:
            raise AssertionError(f'{name} cannot be imported: {exc}') from exc
        return True
    return False


def main() -> None:
    """Run the program; see the module."""
    modules = [name for name in names() if name != SCRIPT]
    needing = [name for name in modules if needs_nova(name)]
    assert needing, 'is Nova installed here?'
    print(f'{len(modules) - len(needing)} modules are imported without Nova; '
          f'{len(needing)} need it, all of them in '
          + ', '.join(sorted({name.split('.')[1] for name in needing})))


if __name__ == '__main__':
    main()
