# SPDX-License-Identifier: Apache-2.0
"""Tests of the check of vGPU rules, also of a stranger's."""

import copy

from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.host.fake import machine
from gpgpu_plugin.host.fake import vgpu_driver

RULE = {'mechanism': 'vf_mdev', 'mix_policy': 'mixed_size',
        'placements': {4: [0, 4], 8: [0]}, 'types': {
            'nvidia-1': {'name': 'GRID X-4Q', 'video_ram': 4096, 'max': 2,
                         'description': 'max_instance=2'},
            'nvidia-2': {'name': 'GRID X-8Q', 'video_ram': 8192, 'max': 1}}}
MISSING = object()


def rules(nodes):
    """Yield the rules of all functions of a modelled machine."""
    for node in nodes:
        if 'vgpu' in node:
            yield node['vgpu']
        yield from rules(node.get('children', ()))


class CheckTest(base.BaseTestCase):

    def test_rules_of_the_package_pass_and_have_all_mechanisms(self):
        mechanisms = set()
        for name in machine.names():
            description = machine.load(name)
            for rule in (*rules(description.roots),
                         *description.vgpu.values()):
                vgpu_driver.check_rule(name, rule)
                mechanisms.add(rule['mechanism'])
        self.assertEqual(set(vgpu_driver.MECHANISMS), mechanisms)

    def test_malformed_rule_is_refused(self):
        vgpu_driver.check_rule('gpu', RULE)
        kind = ('types', 'nvidia-1')
        for path, value in (
            (('mechanism',), MISSING),
            (('mechanism',), 'vfs'),
            (('mechanism',), []),
            (('types',), MISSING),
            (('types',), {}),
            (('types',), []),
            (('mix_policy',), 'all'),
            (('mix_policy',), {}),
            (('more',), 1),
            (('placements',), MISSING),
            (('placements',), []),
            # A size that one of the types has.
            (('placements', 8), MISSING),
            (('placements', 8), 0),
            (('placements', 8), ['0']),
            (('placements', 8), [-1]),
            (('placements', 8), [True]),
            (('placements', '9'), [0]),
            (('types', '/etc/cron.d'), RULE['types']['nvidia-2']),
            (('types', '../../x'), RULE['types']['nvidia-2']),
            (('types', '..'), RULE['types']['nvidia-2']),
            (('types', ''), RULE['types']['nvidia-2']),
            (('types', 1145), RULE['types']['nvidia-2']),
            # A VF without a type reads 0.
            (('types', '0'), RULE['types']['nvidia-2']),
            (kind, None),
            ((*kind, 'name'), MISSING),
            ((*kind, 'name'), 1),
            ((*kind, 'description'), None),
            ((*kind, 'video_ram'), MISSING),
            ((*kind, 'video_ram'), 0),
            ((*kind, 'video_ram'), '1'),
            ((*kind, 'max'), 1.5),
            ((*kind, 'max'), True),
            ((*kind, 'max'), 10**4000),
            ((*kind, 'more'), 1),
        ):
            rule = copy.deepcopy(RULE)
            at = rule
            for key in path[:-1]:
                at = at[key]
            if value is MISSING:
                del at[path[-1]]
            else:
                at[path[-1]] = value
            with self.subTest((path, value)):
                exc = self.assertRaises(
                    exception.Invalid, vgpu_driver.check_rule, 'gpu', rule)
                self.assertIn('vgpu gpu', str(exc))
        for rule in (None, [], 'x', 1):
            self.assertRaises(
                exception.Invalid, vgpu_driver.check_rule, 'gpu', rule)
