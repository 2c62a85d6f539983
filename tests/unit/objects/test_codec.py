# SPDX-License-Identifier: Apache-2.0
"""Tests of the codec: round trip, peers of other versions."""

import dataclasses
import json
import subprocess
import sys

from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin.domain import pci
from gpgpu_plugin.domain.allocation import request
from gpgpu_plugin.objects import claim
from gpgpu_plugin.objects import codec
from gpgpu_plugin.objects import inventory
from gpgpu_plugin.objects import report
from gpgpu_plugin.objects import scheduling
from tests.fixtures import tenant

REQUEST = claim.ClaimRequest(
    **tenant.TENANT,
    instance_uuid='i1', host='h1',
    request=request.Request(
        demands=(request.Demand(resource_class='CUSTOM_GPU_A', count=2),),
        topology=request.GPUTopology.SAME_NUMA),
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
    scheduling.Changes(since=7.25, packed=b'\x00\xff', marker=3),
    scheduling.HostMasks(
        host='h1', node_uuid='u',
        version=scheduling.HostVersion(1, 3, 1795399243.123457),
        groups=(scheduling.GroupMasks(
            variant='A', provider_uuid='p',
            types=(scheduling.TypeMasks(
                resource_class='CUSTOM_GPU_A', free=0b1011),
                scheduling.TypeMasks(
                    resource_class='CUSTOM_VGPU_A_1Q', free=0b0001,
                    available=(3, 0))),
            numa=(0b0011, 0b1100), states={'available': 3}),)),
)


FIRST_CALLS = """
import dataclasses, sys, threading
from gpgpu_plugin.objects import codec
from tests.fixtures import tenant

def fields(kind):
    return [(f'f{n}', kind, dataclasses.field(default=None))
            for n in range(40)]

def make(name, fields):
    return dataclasses.make_dataclass(
        name, fields, frozen=True, kw_only=True)

sys.setswitchinterval(1e-6)
for number in range(100):
    inner = make(f'Inner{number}', fields('int | None'))
    outer = make(f'Outer{number}', [
        ('many', tuple[inner, ...], ()), *fields('str | None')])
    start = threading.Barrier(8)

    def first():
        start.wait()
        codec.from_primitive(outer, {'many': [{'f1': 3}], 'f2': 'x'})
    threads = [threading.Thread(target=first) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print('survived')
"""


class CodecTest(base.BaseTestCase):

    def test_value_that_is_nested_too_deeply_is_refused(self):
        deep = []
        for _ in range(100_000):
            deep = [deep]
        for value in (deep, {'uuid': deep}):
            self.assertRaises(exception.Invalid, codec.from_primitive,
                              claim.Assignment, value)

    def test_first_calls_at_once_survive(self):
        # A process of its own: what fails is a segmentation fault.
        done = subprocess.run(
            [sys.executable, '-c', FIRST_CALLS], capture_output=True,
            text=True, timeout=900, check=False)
        self.assertEqual((0, 'survived\n'), (done.returncode, done.stdout),
                         done.stderr)

    def test_round_trip_through_json(self):
        for value in VALUES:
            with self.subTest(type(value).__name__):
                text = json.dumps(codec.to_primitive(value))
                self.assertEqual(
                    value, codec.from_primitive(
                        type(value), json.loads(text)))

    def test_round_trip_through_bytes(self):
        for value in VALUES:
            with self.subTest(type(value).__name__):
                self.assertEqual(value, codec.decode(
                    type(value), codec.encode(value)))

    def test_text_that_controls_a_terminal_is_escaped(self):
        for text, expected in (
                ('\x1b]0;root\x07', r'\x1b]0;root\x07'),
                ('a\nb\tc', r'a\nb\tc'),
                ('\x7f\x9b31m', r'\x7f\x9b31m'), ('\u202egpj', r'\u202egpj'),
                ('\u2028', r'\u2028'), ('\ud800', r'\ud800'),
                ('Größe "1" \\n /', 'Größe "1" \\n /'), ('', '')):
            function = pci.PCIFunction(
                id='/devices/x', address=text, serial=text,
                companions=(text, 'b'))
            expected = dataclasses.replace(
                function, address=expected, serial=expected,
                companions=(expected, 'b'))
            for _ in range(2):
                function = codec.printable(pci.PCIFunction, function)
                self.assertEqual(expected, function)
            self.assertEqual(expected, codec.received(
                pci.PCIFunction, {
                    'id': '/devices/x', 'address': text, 'serial': text,
                    'companions': [text, 'b']}))
            self.assertEqual({expected.serial: [expected.serial]},
                             codec.received(
                                 dict[str, list[str]], {text: [text]}))

    def test_each_character_is_escaped_unless_it_is_printable(self):
        for text in map(chr, range(0x300)):
            expected = text if text.isprintable() else text.encode(
                'unicode_escape').decode('ascii')
            self.assertEqual(expected, codec.received(str, text), ascii(text))

    def test_no_text_is_longer_than_anybody_reads(self):
        longest = codec.MAX_LENGTH
        for text in ('x' * longest, '\u00e9' * longest):
            self.assertEqual(text, codec.received(str, text, longest))
        label = 'x' * 8 * 2 ** 20
        self.assertEqual(
            {label[:longest]: [label[:longest]]},
            codec.received(dict[str, list[str]], {label: [label]}, longest))
        # A record of the ledger is long.
        self.assertEqual(label, codec.received(str, label))
        self.assertEqual('e' * longest, codec.printable(str, 'e' * 20000))
        quotes = '"x' * 20000
        self.assertEqual(
            quotes[:longest], codec.received(str, quotes, longest))

    def test_text_that_json_cannot_encode_is_escaped(self):
        self.assertEqual({'a': ['\\ud800', 'b']},
                         codec.sendable({'a': ['\ud800', 'b']}))
        good = {'a': ['\x1b', 1, None]}
        self.assertIs(good, codec.sendable(good))

    def test_digest_is_of_the_content_whatever_the_order(self):
        self.assertEqual(codec.digest({'a': 1, 'b': 2}),
                         codec.digest({'b': 2, 'a': 1}))
        self.assertEqual(len(VALUES), len(set(map(codec.digest, VALUES))))

    def test_wrong_bytes_name_the_field(self):
        exc = self.assertRaises(
            exception.Invalid, codec.decode, claim.ClaimRequest,
            b'{"instance_uuid": 5}')
        self.assertIn('instance_uuid', str(exc))

    def test_newer_peer_adds_a_field(self):
        primitive = codec.to_primitive(REQUEST)
        primitive['colour'] = 'red'
        self.assertEqual(
            REQUEST, codec.from_primitive(claim.ClaimRequest, primitive))

    def test_older_peer_leaves_out_a_field_with_default(self):
        primitive = codec.to_primitive(REQUEST)
        del primitive['role']
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
        primitive['request']['topology'] = 'same_rack'
        self.assertRaises(
            exception.Invalid, codec.from_primitive, claim.ClaimRequest,
            primitive)
