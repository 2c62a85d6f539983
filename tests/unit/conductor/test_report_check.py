# SPDX-License-Identifier: Apache-2.0
"""Tests of the check of reports."""

import dataclasses

from oslotest import base as test_base

from gpgpu_plugin import exception
from gpgpu_plugin.conductor import observation
from gpgpu_plugin.domain import vgpu
from tests.unit.conductor import base
from tests.unit.conductor import vgpu_base


def types(count):
    return tuple(vgpu.VGPUType(name=f'T{number}', type_id=str(number))
                 for number in range(count))


class CheckTest(test_base.BaseTestCase):

    def refusal(self, *functions):
        return str(self.assertRaises(
            exception.Invalid, observation.checked_report,
            base.scan(functions)))

    def test_plausible_report_is_as_it_was(self):
        scan = base.scan((*base.EIGHT, vgpu_base.t4(8), vgpu_base.t4(
            9, vgpu_types=types(128))))
        self.assertIs(scan, observation.checked_report(scan))

    def test_function_twice_is_refused(self):
        self.assertIn('each stable id once', self.refusal(
            base.EIGHT[0], base.EIGHT[0]))

    def test_too_many_functions_are_refused(self):
        self.assertIn("'4097 functions' is not valid: 4096 at most",
                      self.refusal(*[base.EIGHT[0]] * 4097))

    def test_too_many_numa_nodes_are_refused(self):
        functions = [
            dataclasses.replace(base.EIGHT[0], id=str(node), numa_node=node)
            for node in range(65)]
        self.assertIn('65 NUMA nodes', self.refusal(*functions))
        observation.checked_report(base.scan(functions[:64]))

    def test_types_of_one_function_are_left_out(self):
        odd = vgpu.VGPUType(name='x' * 999, type_id='1')
        gpu = vgpu_base.t4(0, vgpu_types=(odd, *types(129)))
        scan = observation.checked_report(base.scan(
            (gpu, vgpu_base.t4(1)), problems=('before',)))
        self.assertEqual(types(127), scan.vgpu_capabilities[gpu.id].types)
        self.assertEqual(
            vgpu_base.TYPES,
            scan.vgpu_capabilities[vgpu_base.t4(1).id].types)
        self.assertEqual(
            ['before',
             f'{gpu.address}: vGPU type T127 is left out: the driver lists '
             f'more than 128 types',
             f'{gpu.address}: vGPU type T128 is left out: the driver lists '
             f'more than 128 types',
             f'{gpu.address}: vGPU type {"x" * 64} is left out: its name '
             f'has 999 characters'], list(scan.problems))
