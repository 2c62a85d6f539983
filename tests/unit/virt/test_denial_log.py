# SPDX-License-Identifier: Apache-2.0
"""Tests of denied claims in the log: Nova adds nothing to our line."""

import logging

import fixtures
from oslo_log import log as oslo_logging
from oslotest import base

from gpgpu_plugin.virt import denial_log
from gpgpu_plugin.virt import exception


class DenialLogTest(base.BaseTestCase):

    def setUp(self):
        super().setUp()
        denial_log.install()
        denial_log.install()
        self.log = self.useFixture(fixtures.FakeLogger(
            denial_log.LOGGER, format='%(levelname)s %(message)s'))

    def logged(self, error):
        try:
            raise error
        except type(error):
            oslo_logging.getLogger(denial_log.LOGGER).exception(
                'Failed to build and run instance', resource=None)
        return self.log.output.splitlines()

    def test_denied_claim_is_no_error_of_nova(self):
        self.assertEqual([], self.logged(exception.GPUClaimDenied(
            reason='Claim of i denied: not_enough_available')))

    def test_other_errors_keep_their_traceback(self):
        lines = self.logged(exception.GPUOperationFailed(
            instance='i', remedy='repeat'))
        self.assertEqual('ERROR Failed to build and run instance', lines[0])
        self.assertIn('Traceback (most recent call last):', lines)

    def test_line_without_an_error_stays(self):
        logging.getLogger(denial_log.LOGGER).warning('Some %s', 'text')
        self.assertEqual('WARNING Some text\n', self.log.output)
