# SPDX-License-Identifier: Apache-2.0
"""Tests of which driver report counts, and for how long."""

from oslotest import base

from gpgpu_plugin.domain import vgpu


def report(*existing, at=('a', 1), most=None, **available):
    return vgpu.DriverCapacity(
        existing=existing, available=available, observed_max=most or {},
        sampled_at=at)


class NewerTest(base.BaseTestCase):

    def test_report_sampled_earlier_is_dropped(self):
        stored = report(at=('a', 2), A=1)
        self.assertIs(stored, vgpu.newer_report(
            stored, report(at=('a', 1), A=5), {}))

    def test_report_of_another_start_is_taken(self):
        newer = vgpu.newer_report(
            report(at=('a', 9), A=1), report(at=('b', 1), A=5), {})
        self.assertEqual({'A': 5}, newer.available)

    def test_maximum_is_observed_only_without_other_types(self):
        self.assertEqual({'A': 4}, vgpu.newer_report(
            None, report('/1', A=3), {'/1': 'A'}).observed_max)
        self.assertEqual({}, vgpu.newer_report(
            None, report('/1', A=3), {'/1': 'B'}).observed_max.get('A', {}))
        self.assertEqual({'A': 4}, vgpu.newer_report(
            report(most={'A': 4}), report(A=0), {}).observed_max)

    def test_maximum_that_is_exceeded_is_forgotten(self):
        self.assertEqual({}, vgpu.newer_report(
            report(most={'A': 1}), report('/1', A=None),
            {'/1': 'A'}).observed_max)


class MergeTest(base.BaseTestCase):

    def test_scan_that_could_not_ask_changes_nothing(self):
        stored = report(A=1, most={'A': 2})
        self.assertIs(stored, vgpu.merge_reports(stored, None, {}, {}))
        self.assertIsNone(vgpu.merge_reports(None, None, {}, {}))

    def test_same_report_sampled_later_is_no_news(self):
        stored = report(A=1, most={'A': 1})
        self.assertIs(stored, vgpu.merge_reports(
            stored, report(at=('a', 7), A=1), {}, {}))

    def test_uuids_of_own_mdevs_become_stable_ids(self):
        merged = vgpu.merge_reports(
            None, report('mine', 'other', A=1), {'mine': '/gpu/mdev0'}, {})
        self.assertEqual(('/gpu/mdev0', 'other'), merged.existing)


class TypesTest(base.BaseTestCase):

    def test_observed_maximum_limits_what_the_driver_lists(self):
        listed = vgpu.VGPUCapability(
            mechanism=vgpu.VGPUMechanism.MDEV, types=tuple(
                vgpu.VGPUType(name=name, type_id=name, max_instances=4)
                for name in 'AB'))
        found = vgpu.reported_types(listed, report(most={'A': 3, 'C': 1}))
        self.assertEqual({'A': 3, 'B': 4}, {
            name: known.max_instances for name, known in found.items()})

    def test_type_that_was_not_listed_before_is_known_by_its_name(self):
        found = vgpu.reported_types(
            vgpu.VGPUCapability(
                mechanism=vgpu.VGPUMechanism.VF, types=None),
            report('/1', **{'H100L-1-12C': None, 'L40S-12Q': None}))
        self.assertEqual(
            {'H100L-1-12C': (12288, 7), 'L40S-12Q': (12288, None)},
            {name: (known.video_ram, known.max_instances)
             for name, known in found.items()})

    def test_without_capability_there_are_none(self):
        self.assertEqual({}, vgpu.reported_types(None, report(A=1)))


class AvailableTest(base.BaseTestCase):

    def test_vgpus_made_since_the_report_are_subtracted(self):
        self.assertEqual({'A': 1, 'B': 0, 'C': None},
                         vgpu.reported_available(
            report('/1', A=3, B=0, C=None),
            {'/1': 'B', '/2': 'A', '/3': 'A'}))

    def test_report_that_names_an_unknown_vgpu_holds(self):
        # It is another tool's, or was removed since.
        self.assertEqual({'A': 2}, vgpu.reported_available(
            report('/1', 'other', A=3), {'/2': 'A'}))
