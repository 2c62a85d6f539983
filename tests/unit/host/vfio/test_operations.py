# SPDX-License-Identifier: Apache-2.0

import errno
from unittest import mock

import fixtures
from oslotest import base

from gpgpu_plugin import exception
from gpgpu_plugin import nvidia
from gpgpu_plugin import privsep
from gpgpu_plugin.host.discovery import sysfs
from gpgpu_plugin.host.vfio import operations

ADDRESS = '0000:3b:00.0'
CALLS = {
    'hot_reset': (([ADDRESS],), None, None),
    'reset_and_wait': (([ADDRESS],), nvidia.ClearReading(1, 0, 255, 1, 20),
                       (1, 0, 255, 1, 20)),
    'firmware': ((), {'option ROM': 'ab', 'VPD': ''}, ('ab', '')),
    'memory': ((), 1024, 1024),
    'write_marks': (('seed',), (64, 64), [64, 64]),
    'find_marks': (('seed',), 3, 3),
    'try_marks': (('seed',), (64, 64), [64, 64]),
    'scrub': ((1024,), 1024, 1024)}


class PrivilegedVFIOTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        self.vfio = operations.PrivilegedVFIO(sysfs.Sysfs('/sys'))
        self.call = self.useFixture(
            fixtures.MockPatch('gpgpu_plugin.privsep.call')).mock

    def test_helper_is_asked_about_the_same_sysfs(self):
        for name, (arguments, expected, answer) in CALLS.items():
            self.call.return_value = answer
            self.assertEqual(
                expected, getattr(self.vfio, name)(ADDRESS, *arguments))
            [called] = self.call.call_args_list
            self.assertEqual(name, called.args[0].__name__)
            self.assertEqual(('/sys', ADDRESS, *arguments), called.args[1:])
            self.call.reset_mock()

    def test_errors_name_the_device(self):
        for error, expected in (
                (OSError(errno.ENODEV, 'No such device'),
                 exception.HostError),
                (privsep.HelperUnavailable(errno.EPERM, 'no helper'),
                 exception.HostNotReady)):
            for name, (arguments, _, _) in CALLS.items():
                self.call.side_effect = error
                exc = self.assertRaises(
                    expected, getattr(self.vfio, name), ADDRESS, *arguments)
                self.assertIn(ADDRESS, str(exc))
                self.assertIn(error.strerror, str(exc))


class ProtocolTest(base.BaseTestCase):

    def test_every_method_is_asked_here(self):
        self.assertEqual(
            set(CALLS), {name for name in vars(operations.VFIO)
                         if not name.startswith('_')})
        self.assertIsInstance(mock.Mock(spec=operations.VFIO), mock.Mock)
