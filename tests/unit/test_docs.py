#    Licensed under the Apache License, Version 2.0 (the "License"); you may
#    not use this file except in compliance with the License. You may obtain
#    a copy of the License at
#
#         http://www.apache.org/licenses/LICENSE-2.0
#
#    Unless required by applicable law or agreed to in writing, software
#    distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
#    WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
#    License for the specific language governing permissions and limitations
#    under the License.
"""What the documentation tells an operator to configure."""

import configparser
import re
import textwrap

from nova.conf import scheduler
from oslotest import base

from tests.unit import test_meta


def ini_blocks(page: str) -> list[str]:
    """Return the text of each code block of INI on a page."""
    return [textwrap.dedent(block) for _, block in re.findall(
        r'^( *)\.\. code-block:: ini\n\n((?:\1 +\S.*\n|\n)+)',
        test_meta.doc(page), re.MULTILINE)]


def values(page: str, section: str, option: str) -> list[str]:
    """Return an option's values in the blocks of a page."""
    found = []
    for block in ini_blocks(page):
        parser = configparser.ConfigParser(
            strict=False, interpolation=None)
        parser.read_string(block)
        if parser.has_option(section, option):
            found.append(parser.get(section, option))
    return found


class TestInstall(base.BaseTestCase):

    def test_enabled_filters_are_the_defaults_of_nova_and_ours(self):
        [default] = [
            option.default for option in scheduler.filter_scheduler_opts
            if option.name == 'enabled_filters']
        [shown] = values('install.rst', 'filter_scheduler', 'enabled_filters')
        self.assertEqual([*default, 'GpuFilter'], shown.split(','))
