# SPDX-License-Identifier: Apache-2.0
"""Tests of the payloads of notifications: no change without a version."""

import dataclasses
import hashlib
import typing

from oslotest import base

from gpgpu_plugin.objects import history

# If a field was added, raise the minor version; if one was changed or removed,
# the major one. Then correct the fingerprint.
FINGERPRINTS = {
    'AssignmentPayload': '1.0-6c8152d4637903c9',
    'AssignmentExistsPayload': '1.0-5ea6f8eaa7603962',
    'DevicePayload': '1.0-7b69f0c74d078666',
    'RefusalPayload': '1.0-b94fe62e1ede4f16'}


def payloads(kind=history.Payload):
    return {found for child in kind.__subclasses__()
            for found in {child, *payloads(child)}}


def fingerprint(kind):
    hints = typing.get_type_hints(kind)
    fields = sorted((field.name, str(hints[field.name]))
                    for field in dataclasses.fields(kind))
    return f'{kind.VERSION}-' + hashlib.sha256(
        repr(fields).encode()).hexdigest()[:16]


class VersionsTest(base.BaseTestCase):

    def test_fields_of_a_version_are_what_they_were(self):
        self.assertEqual(FINGERPRINTS, {
            kind.__name__: fingerprint(kind) for kind in payloads()})


class PrimitiveTest(base.BaseTestCase):

    def test_payload_says_what_it_is(self):
        payload = history.RefusalPayload(
            refused_by='GpuFilter', instance_uuid='i1', project_id=None,
            host=None, reason='host_draining',
            hosts_refused={'host_draining': 2}, hosts_left=1, detail='2')
        self.assertEqual({
            'gpgpu_object.name': 'RefusalPayload',
            'gpgpu_object.namespace': 'gpgpu',
            'gpgpu_object.version': '1.0',
            'gpgpu_object.data': {
                'request_id': None, 'refused_by': 'GpuFilter',
                'instance_uuid': 'i1', 'project_id': None, 'host': None,
                'reason': 'host_draining',
                'hosts_refused': {'host_draining': 2}, 'hosts_left': 1,
                'detail': '2'}}, history.notification_primitive(payload))
