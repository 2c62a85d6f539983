# SPDX-License-Identifier: Apache-2.0
"""An example or more of each command, for its help and the reference."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence

PROGRAM = 'gpgpu-manage'
HEADING = 'Example::'
"""First line of a command's examples; the reference is reStructuredText."""

EXAMPLES: Mapping[str, Sequence[str]] = {
    'assignment end': (
        '--host gpu1 --instance '
        'd9428888-122b-41e1-b85c-5d3b8d7d4f2e',
    ),
    'assignment list': ('--host gpu1 --reason',),
    'complete': ('',),
    'conductor ping': (
        '',
        '--this-host --wait 5',
    ),
    'db purge': ('--before 2026-10-31',),
    'db restored': ('',),
    'db sync': ('',),
    'db version': ('',),
    'device accept': (
        'gpu1 0000:3b:00.0 0000:5e:00.0 --reason "burned in and cleared"',
    ),
    'device clean': ('gpu1 0000:3b:00.0',),
    'device history': ('gpu1 0000:3b:00.0 --reason',),
    'device list': (
        '--host gpu1',
        '--faulty -c Host -c Address -c Health -c Reason',
        '--state quarantined -f json',
    ),
    'device quarantine': (
        'gpu1 0000:3b:00.0 --reason "Xid 79"',
    ),
    'device release': ('gpu1 0000:3b:00.0',),
    'device replace': ('gpu1 0000:3b:00.0',),
    'device retire': ('gpu1 0000:3b:00.0',),
    'device set': ('gpu1 0000:3b:00.0 --disable',),
    'device show': (
        'gpu1 0000:3b:00.0',
        '4d1f8b6c-2a97-4e53-8c1b-7a3f60d95e02',
    ),
    'doctor': (
        '',
        '--host gpu1 --fix',
    ),
    'event list': ('--host gpu1 --from 2026-11-01 --long',),
    'flavor render': ('--variant H100 --count 2 --topology same_switch',),
    'flavor set': (
        '--variant H100 --count 2 gpu.2xh100',
        '--gpu L4/L4-4Q=1 vgpu.l4',
    ),
    'flavor unset': ('gpu.2xh100',),
    'group links': ('gpu1 H100',),
    'group list': ('--variant H100',),
    'group set': (
        'gpu1 H100 --allocation-policy breadth_first',
        '--all-hosts H100 --allocation-policy breadth_first',
        'gpu1 H100 --unset allocation-policy',
        'gpu1 H100 --link-partitions partitions.json',
    ),
    'group show': ('gpu1 H100',),
    'host delete': ('gpu1',),
    'hold add': (
        'gpu1 0000:3b:00.0 --kind disabled --reason "until the audit is over"',
    ),
    'hold list': ('--host gpu1', '--kind failed -f json'),
    'hold remove': ('gpu1 0000:3b:00.0 --kind disabled',),
    'host designate': ('0000:3b:00.0',),
    'host drain': ('gpu1',),
    'host list': ('',),
    'host show': ('gpu1',),
    'host show-designated': ('',),
    'host takeover': ('gpu1',),
    'host undesignate': ('0000:3b:00.0',),
    'host undrain': ('gpu1',),
    'instance history': ('d9428888-122b-41e1-b85c-5d3b8d7d4f2e',),
    'instance show': ('d9428888-122b-41e1-b85c-5d3b8d7d4f2e',),
    'key create': ('host gpu1 --file gpu1.key', 'host gpu1 gpu2 --dir keys',
                   'host --all --dir new-keys'),
    'key init': ('',),
    'key list': ('',),
    'key revoke': ('host gpu1 --number 2',),
    'key rotate': ('', '--finish'),
    'map': (
        '--by owner',
        '--html gpus.html',
    ),
    'pci list': (
        '',
        '--machine hgx-h100-8 --text',
    ),
    'pci record': ('gpu1.yaml',),
    'status': (
        '',
        '-f json',
    ),
    'usage export': ('--to 2026-10.csv',),
    'usage list': (
        '--project 6f7a3c --from yesterday --to today',
        '--project 6f7a3c --from 2026-10-01 --to 2026-11-01',
    ),
    'usage summary': (
        '--from 2026-10-01 --to 2026-11-01 --by project,variant',
    ),
    'variant create': (
        'H100 --vendor 10de --device 2330 --cleaning-policy '
        'scrub --memory-mib 81559',
        'H100 --vendor 10de --device 2330 --dry-run',
    ),
    'variant delete': ('H100',),
    'variant import': (
        '',
        '--only NVIDIA_H100_SXM5_80GB',
        'variants.yaml',
    ),
    'variant list': ('',),
    'variant set': (
        'H100 --trait CUSTOM_FAST --mix-policy equal_size',
        'H100 --unset trait',
    ),
    'variant show': ('H100',),
    'vgpu-type disable': ('L4 L4-24Q --host gpu1',),
    'vgpu-type enable': ('L4 L4-4Q',),
    'vgpu-type list': ('--enabled --cloud',),
    'vgpu-type show': ('L4 L4-4Q',),
    'what-if drain': (
        'gpu1',
        'gpu1 gpu2 -f json',
    ),
    'why-not': (
        '--flavor gpu.2xh100',
        '--server web-1 --host gpu1',
    ),
}
"""Arguments by the command's name."""


def epilog(name: str) -> str | None:
    """Return the text after the options of a command's help."""
    lines = [f'{PROGRAM} {name} {arguments}'.strip()
             for arguments in EXAMPLES.get(name, ())]
    return '\n'.join([HEADING, '', *(f'    {line}' for line in lines)]
                     ) if lines else None
