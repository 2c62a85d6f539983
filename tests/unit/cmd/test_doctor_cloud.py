# SPDX-License-Identifier: Apache-2.0
"""Tests of what Placement and Nova are asked."""

from openstack import exceptions as sdk_exceptions
from oslotest import base

from gpgpu_plugin.cmd import cloud
from gpgpu_plugin.cmd import doctor_cloud
from gpgpu_plugin.doctor import view
from tests.unit.cmd import fake_cloud

LISTED = [
    {'uuid': 'p1', 'name': 'h1_gpu_T4', 'root_provider_uuid': 'root'},
    {'uuid': 'root', 'name': 'h1', 'root_provider_uuid': 'root'}]


class CloudCase(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.answers = {
            '/resource_providers': {'resource_providers': LISTED},
            '/resource_providers/p1/inventories': {'inventories': {
                'CUSTOM_GPU_T4': {'total': 4, 'reserved': 1}}},
            '/resource_providers/p1/traits': {'traits': ['CUSTOM_GPU']},
            '/resource_providers/p1/allocations': {'allocations': {
                'i1': {'resources': {'CUSTOM_GPU_T4': 1}}}}}
        self.fake = fake_cloud.FakeCloud(self.answers)
        self.cloud = doctor_cloud.Cloud(self.fake.connect)


class PlacementTest(CloudCase):

    def test_provider_is_read_in_three_requests(self):
        self.answers['/resource_providers'] = (
            lambda path, query: {'resource_providers':
                                 LISTED[:1] if query else LISTED})
        found, ours = self.cloud.providers(['p1', 'gone'], None)
        provider = view.Provider(
            uuid='p1', name='h1_gpu_T4', root='root',
            traits=frozenset({'CUSTOM_GPU'}),
            inventories={'CUSTOM_GPU_T4': view.Inventory(
                total=4, reserved=1)},
            allocations={'i1': {'CUSTOM_GPU_T4': 1}})
        self.assertEqual({'p1': provider}, found)
        self.assertEqual([provider], ours)
        self.assertEqual({('placement', 'GET'): 5}, self.fake.requests)

    def test_list_is_limited_to_a_node(self):
        self.answers['/resource_providers/root/allocations'] = {
            'allocations': {}}
        self.cloud.providers([], 'n1')
        self.assertEqual(
            [{'in_tree': 'n1'},
             {'in_tree': 'n1', 'required': 'CUSTOM_GPU,OWNER_NOVA'}],
            [query for path, query in self.fake.seen
             if path == '/resource_providers'])

    def test_deletion_of_a_provider_that_placement_refuses_is_an_error(self):
        for status in (204, 404):
            self.answers['/resource_providers/p9'] = status
            self.cloud.delete_provider('p9')
        for status in (403, 409, 500):
            self.answers['/resource_providers/p9'] = status
            self.assertRaises(
                cloud.ERRORS, self.cloud.delete_provider, 'p9')

    def test_refusal_is_an_error_that_the_command_knows(self):
        self.answers['/resource_providers'] = 403
        self.assertRaises(
            cloud.ERRORS, self.cloud.providers, [], None)


class NovaTest(CloudCase):

    def test_hosts_of_services_are_listed(self):
        self.answers['/os-services'] = {'services': [
            {'host': 'h1'}, {'host': 'h2'}]}
        self.assertEqual({'h1', 'h2'}, self.cloud.computes())
        self.assertEqual([('/os-services', {'binary': 'nova-compute'})],
                         self.fake.seen)

    def test_flavors_of_all_pages_are_listed(self):
        def page(path, query):
            first = int(query.get('marker', -1)) + 1
            return {'flavors': [{
                'id': str(number), 'name': f'f{number}', 'extra_specs': {
                    'resources:CUSTOM_GPU_T4': '1',
                    'resources1:CUSTOM_GPU_L4': '1', 'hw:x': '1'}}
                for number in range(first, min(first + 1000, 1001))]}
        self.answers['/flavors/detail'] = page
        found = self.cloud.flavors()
        self.assertEqual(1001, len(found))
        self.assertEqual(view.Flavor(
            name='f0', resource_classes=('CUSTOM_GPU_T4', 'CUSTOM_GPU_L4')),
            found[0])
        self.assertEqual({('compute', 'GET'): 2}, self.fake.requests)

    def test_flavor_without_resources_is_left_out(self):
        self.answers['/flavors/detail'] = {'flavors': [
            {'id': '1', 'name': 'small', 'extra_specs': {'hw:x': '1'}}]}
        self.assertEqual((), self.cloud.flavors())

    def test_server_that_does_not_exist_is_none(self):
        self.answers['/servers/i1'] = {'server': {
            'OS-EXT-SRV-ATTR:host': 'h1',
            'OS-EXT-STS:task_state': 'spawning'}}
        self.assertEqual(
            view.Server(uuid='i1', host='h1', task='spawning'),
            self.cloud.server('i1'))
        self.assertIsNone(self.cloud.server('i2'))

    def test_server_that_cannot_be_read_is_an_error(self):
        self.answers['/servers/i1'] = 500
        self.assertRaises(
            sdk_exceptions.SDKException, self.cloud.server, 'i1')
