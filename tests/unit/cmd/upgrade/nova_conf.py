# SPDX-License-Identifier: Apache-2.0
"""A nova.conf of tests."""

import pathlib

from gpgpu_plugin.cmd import upgrade


class NovaConfMixin:
    """Mixin of tests that write nova.conf into ``self.folder``."""

    def nova_conf(self, *lines):
        path = pathlib.Path(self.folder, 'nova.conf')
        path.write_text('\n'.join(lines) + '\n', encoding='utf-8')
        return upgrade.read([str(path)])
