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
"""What crosses RPC comes out as it went in; peers may differ in version."""

import json

from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.domain import pci
from gpgpu_plugin.domain import request
from gpgpu_plugin.objects import claim
from gpgpu_plugin.objects import codec
from gpgpu_plugin.objects import inventory
from gpgpu_plugin.objects import report

REQUEST = claim.ClaimRequest(
    instance_uuid='i1', host='h1',
    request=request.Request(
        demands=(request.Demand(resource_class='CUSTOM_GPU_A', count=2),),
        topology=request.Topology.SAME_NUMA),
    allocated={'rp': {'CUSTOM_GPU_A': 2}})

VALUES = (
    REQUEST,
    report.HostReport(
        host='h1', node='h1', node_uuid='u',
        functions=(pci.PCIFunction(id='/devices/pci0000:00/01.0',
                                   address='0000:01:00.0', numa_node=1),)),
    inventory.HostInventory(
        host='h1', node_uuid='u', generation=3,
        groups=(inventory.GroupInventory(
            variant='A', provider_name='n', provider_uuid='p', traits=('T',),
            types=(inventory.TypeInventory(
                resource_class='CUSTOM_GPU_A', total=8, reserved=1,
                max_unit=8),)),)),
    inventory.Changes(
        generation=7,
        hosts=(inventory.HostGroups(
            host='h1', node_uuid='u', generation=3,
            groups=(inventory.GroupView(
                variant='A', provider_uuid='p',
                resource_class='CUSTOM_GPU_A', free=0b1011,
                numa=(0b0011, 0b1100), states={'available': 3}),)),)),
)


class CodecTest(base.BaseTestCase):

    def test_round_trip_through_json(self):
        for value in VALUES:
            with self.subTest(type(value).__name__):
                text = json.dumps(codec.to_primitive(value))
                self.assertEqual(
                    value, codec.from_primitive(
                        type(value), json.loads(text)))

    def test_newer_peer_adds_a_field(self):
        primitive = codec.to_primitive(REQUEST)
        primitive['colour'] = 'red'
        self.assertEqual(
            REQUEST, codec.from_primitive(claim.ClaimRequest, primitive))

    def test_older_peer_leaves_out_a_field_with_default(self):
        primitive = codec.to_primitive(REQUEST)
        del primitive['slot']
        self.assertEqual(
            REQUEST, codec.from_primitive(claim.ClaimRequest, primitive))

    def test_wrong_type_names_the_field(self):
        primitive = codec.to_primitive(REQUEST)
        primitive['request']['demands'][0]['count'] = 'two'
        exc = self.assertRaises(
            exception.Invalid, codec.from_primitive, claim.ClaimRequest,
            primitive)
        self.assertIn('demands[0].count', str(exc))

    def test_missing_field_is_named(self):
        exc = self.assertRaises(
            exception.Invalid, codec.from_primitive, claim.ClaimRequest,
            {'host': 'h1', 'request': {}})
        self.assertIn('instance_uuid', str(exc))

    def test_unknown_topology_is_refused(self):
        primitive = codec.to_primitive(REQUEST)
        primitive['request']['topology'] = 'linked'
        self.assertRaises(
            exception.Invalid, codec.from_primitive, claim.ClaimRequest,
            primitive)
