# SPDX-License-Identifier: Apache-2.0
"""Files with descriptions of machines, in YAML.

An operator's file may come from a stranger. YAML's aliases can expand a few
hundred bytes to more data than there is memory, and deep nesting exhausts the
parser's stack. gpgpu_plugin.host.fake.machine.dump writes neither, so neither
is accepted. The package's own files are written by hand, with aliases.
"""

from __future__ import annotations

import yaml

# A recording of 256 VFs has 0.5 MB: it takes 0.3 s with the C loader, which
# not every PyYAML has, and 3 s without.
_Loader = getattr(yaml, 'CSafeLoader', yaml.SafeLoader)
_MAX_SIZE = 16 * 1024 * 1024
_MAX_LEVELS = 16


def read(path: str) -> str:
    """Return the text of an operator's file.

    :raises OSError: it cannot be read
    :raises ValueError: it is not YAML, too large, or would be once parsed; the
        message says which
    """
    with open(path, 'rb') as file:
        data = file.read(_MAX_SIZE + 1)
    if len(data) > _MAX_SIZE:
        raise ValueError(f'it has more than {_MAX_SIZE >> 20} MiB')
    text = data.decode()
    try:
        _check(text)
    except yaml.YAMLError as exc:
        raise ValueError(_explain(exc)) from None
    return text


def parse(text: str) -> object:
    """Return the data of a text.

    :raises ValueError: it is not YAML; the message says why
    """
    try:
        return yaml.load(text, _Loader)
    # ValueError: a value looks like a date and is none.
    except (yaml.YAMLError, ValueError) as exc:
        raise ValueError(_explain(exc)) from None


def _check(text: str) -> None:
    levels = 0
    # Events are parsed one by one, before any data is built from them.
    for event in yaml.parse(text, _Loader):
        line = event.start_mark.line + 1 if event.start_mark else 0
        if isinstance(event, yaml.AliasEvent):
            raise ValueError(f'line {line} has an alias ("*")')
        levels += isinstance(event, yaml.CollectionStartEvent)
        levels -= isinstance(event, yaml.CollectionEndEvent)
        if levels > _MAX_LEVELS:
            raise ValueError(f'line {line} has too many levels')


def _explain(exc: Exception) -> str:
    text = ' '.join(str(exc).split())
    return f'it is not YAML: {text:.200}'
