# SPDX-License-Identifier: Apache-2.0
"""Tests of extensions: found by name, never silently absent."""

from unittest import mock

from oslotest import base
from stevedore import extension

from gpgpu_plugin import exception
from gpgpu_plugin import extensions
from gpgpu_plugin.host.fake import host as fake_host
from gpgpu_plugin.scheduler_filters import gpu_filter


class ExtensionsTest(base.BaseTestCase):

    def test_by_name(self):
        self.assertIs(fake_host.FakeHost, extensions.load(
            extensions.HOSTS, 'fake'))
        self.assertIn(gpu_filter.GpuFilter, extensions.load_all(
            extensions.SCHEDULER_FILTERS).values())

    def test_unknown_name_says_which_there_are(self):
        exc = self.assertRaises(
            exception.ConfigInvalid, extensions.load,
            extensions.HOSTS, 'quantum')
        self.assertIn('quantum', str(exc))
        self.assertIn('fake', str(exc))

    def test_unknown_name_is_that_of_the_option(self):
        exc = self.assertRaises(
            exception.ConfigInvalid, extensions.load,
            extensions.RESOURCE_TRACKERS, 'quantum',
            '[gpgpu_compute] resource_tracker')
        self.assertEqual(
            'Option [gpgpu_compute] resource_tracker: '
            'gpgpu_plugin.resource_trackers has no entry point quantum '
            '(known: conductor)', str(exc))

    def test_part_that_cannot_be_loaded_is_an_error(self):
        broken = mock.patch.object(
            extension.ExtensionManager, '_load_one_plugin',
            side_effect=ImportError('no module x'))
        with broken:
            for call in (
                    lambda: extensions.load(extensions.HOSTS, 'fake'),
                    lambda: extensions.load_all(
                        extensions.SCHEDULER_FILTERS)):
                exc = self.assertRaises(exception.ConfigInvalid, call)
                self.assertIn('no module x', str(exc))
