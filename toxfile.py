# SPDX-License-Identifier: Apache-2.0
"""Lets all tox environments live in one folder.

Each environment needs the same Nova, and its installation takes a minute and
half a gigabyte. tox writes the environment's name into the folder and starts
over when another name comes; here the name of the folder is written instead.
"""

from tox.plugin import impl
from tox.tox_env import info
from tox.tox_env.api import ToxEnv
from tox.tox_env.python.virtual_env import runner


class SharedInfo(info.Info):
    def compare(self, value, section, sub_section=None):
        if section == ToxEnv.__name__:
            value = {**value, 'name': 'shared'}
        return super().compare(value, section, sub_section)


class SharedRunner(runner.VirtualEnvRunner):
    """A virtualenv that several environments of the same needs share."""

    @staticmethod
    def id():
        return 'shared'

    @property
    def cache(self):
        return SharedInfo(self.env_dir)


@impl
def tox_register_tox_env(register):
    register.add_run_env(SharedRunner)
