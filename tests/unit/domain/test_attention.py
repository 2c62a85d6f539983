# SPDX-License-Identifier: Apache-2.0
"""Tests of what needs somebody now."""

from oslotest import base

from gpgpu_plugin.domain import attention
from gpgpu_plugin.domain import device
from gpgpu_plugin.domain import health
from gpgpu_plugin.domain import host
from gpgpu_plugin.domain import variant

CAUSE = attention.Cause


class RulesTest(base.BaseTestCase):

    def test_every_cause_has_a_rule_and_the_most_urgent_is_first(self):
        order = list(attention.AttentionSeverity)
        ranks = [order.index(attention.RULES[cause][0]) for cause in CAUSE]
        self.assertEqual(sorted(ranks, reverse=True), ranks)


class HostTest(base.BaseTestCase):

    def test_state_is_the_cause_unless_the_host_is_up(self):
        states = host.HostState
        self.assertEqual(
            {states.UP: [], states.SILENT: [CAUSE.HOST_SILENT],
             states.RESTORED: [CAUSE.HOST_RESTORED],
             states.DISABLED: [CAUSE.HOST_DISABLED]},
            {state: list(attention.of_host(state, draining=False))
             for state in states if state is not states.DRAINING})
        self.assertEqual([], list(attention.of_host(None, draining=False)))

    def test_drained_host_may_be_silent(self):
        for state in host.HostState:
            self.assertEqual(
                [CAUSE.HOST_DRAINING],
                list(attention.of_host(state, draining=True)))


class HoldTest(base.BaseTestCase):

    def severities(self, *kinds):
        return [str(attention.RULES[cause][0])
                for cause in attention.of_holds(kinds)]

    def test_only_holds_that_no_operator_set_need_somebody(self):
        for kind in device.HoldKind:
            self.assertEqual(
                ['info' if kind in device.BY_OPERATORS else 'critical'],
                self.severities(kind), kind)

    def test_failed_device_that_an_operator_withdrew_is_in_good_hands(self):
        for kind in (device.HoldKind.QUARANTINED, device.HoldKind.RETIRED):
            self.assertEqual(
                ['info'], self.severities(device.HoldKind.FAILED, kind))
        self.assertEqual(['critical', 'info'], self.severities(
            device.HoldKind.DISABLED, device.HoldKind.FAILED))


class DeviceTest(base.BaseTestCase):

    def test_missing_device_is_listed_once(self):
        self.assertEqual([CAUSE.DEVICE_MISSING], list(attention.of_device(
            health.Health.FAILED, (), present=False)))

    def test_health_is_the_cause_whatever_the_state_is(self):
        self.assertEqual(
            {health.Health.OK: [], health.Health.UNKNOWN: [],
             health.Health.DEGRADED: [CAUSE.HEALTH_DEGRADED],
             health.Health.FAILED: [CAUSE.HEALTH_FAILED], None: []},
            {found: list(attention.of_device(found, (), present=True))
             for found in (*health.Health, None)})

    def test_quarantined_device_is_listed_for_its_hold_alone(self):
        self.assertEqual([], list(attention.of_device(
            None, {device.HoldKind.QUARANTINED}, present=False)))


class VariantTest(base.BaseTestCase):

    def test_change_needs_somebody_only_for_a_reason(self):
        status = variant.VariantStatus
        self.assertEqual([], list(attention.of_variant(status.READY, None)))
        for found in status:
            self.assertEqual([CAUSE.VARIANT_DOUBTFUL], list(
                attention.of_variant(found, 'it was undone')))
        self.assertEqual([CAUSE.VARIANT_PENDING], list(
            attention.of_variant(status.APPLYING, None)))


class ConductorTest(base.BaseTestCase):

    def test_service_is_lost_if_none_takes_calls(self):
        for unfit, cause in (([True], CAUSE.NO_CONDUCTOR_FIT),
                             ([True, False], CAUSE.CONDUCTOR_UNFIT),
                             ([], CAUSE.NO_PING_ANSWERED)):
            self.assertEqual(cause, attention.of_conductors(unfit))


class LinesTest(base.BaseTestCase):

    def test_lines_name_the_first_and_the_next_command(self):
        self.assertEqual([
            attention.Line(
                severity=attention.AttentionSeverity.CRITICAL,
                what='hosts that are silent', count=5,
                where='h0, h1, h2 and 2 more',
                next_command='gpgpu-manage host show h0'),
            attention.Line(
                severity=attention.AttentionSeverity.INFO,
                what='hosts that are draining', count=1, where='h9',
                next_command='gpgpu-manage host show h9')],
            attention.lines([
                (CAUSE.HOST_DRAINING, 'h9'),
                *((CAUSE.HOST_SILENT, f'h{number}')
                  for number in range(5))]))

    def test_exit_code_is_that_of_the_most_urgent_line(self):
        for causes, code in (
                ((), 0), ((CAUSE.HOST_DRAINING,), 0),
                ((CAUSE.HOST_DRAINING, CAUSE.HEALTH_DEGRADED), 1),
                ((CAUSE.HEALTH_DEGRADED, CAUSE.HOST_SILENT), 2)):
            self.assertEqual(code, attention.exit_code(attention.lines(
                (cause, 'x') for cause in causes)))
