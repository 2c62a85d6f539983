# SPDX-License-Identifier: Apache-2.0
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
