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
"""Files in which operators state link partitions (domain.link_table)."""

from __future__ import annotations

import pathlib

from gpgpu_plugin import exception
from gpgpu_plugin.domain import link_table

HELP = ('file of JSON with the sets of GPUs that an instance can get '
        'together: "named_by" (order, address or slot), "partitions" or '
        'NVIDIA\'s "partitionInfo", and if these name module IDs, "modules"')


def read(path: pathlib.Path) -> str:
    """Return the table in a file, in the form in which it is kept.

    :raises NotFound: the file does not exist
    :raises Invalid: the file cannot be read, or has no table
    """
    try:
        text = path.read_text(encoding='utf-8')
    except FileNotFoundError:
        raise exception.NotFound(kind='file', name=path) from None
    except (OSError, UnicodeDecodeError) as exc:
        raise exception.Invalid(
            field='link partitions', value=str(path),
            expected=f'a file of JSON: {exc}') from None
    return link_table.normalize(text)
