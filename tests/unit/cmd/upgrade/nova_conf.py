# SPDX-License-Identifier: Apache-2.0
"""A nova.conf of tests."""

import pathlib

from gpgpu_plugin.cmd.upgrade import nova


class NovaConfMixin:
    """Mixin of tests that write nova.conf into ``self.folder``."""

    def nova_conf(self, *lines):
        path = pathlib.Path(self.folder, 'nova.conf')
        path.write_text('\n'.join(lines) + '\n', encoding='utf-8')
        return nova.read([str(path)])
