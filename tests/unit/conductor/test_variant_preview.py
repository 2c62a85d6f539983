# SPDX-License-Identifier: Apache-2.0
"""Tests of what hosts would clean if variants were created."""

from gpgpu_plugin import exception
from gpgpu_plugin.conductor.admin import device as device_admin
from gpgpu_plugin.conductor.admin import variant as variant_admin
from gpgpu_plugin.objects import admin
from tests.unit.conductor import base

PF = base.function(6, device='74a1', used_by='vf', sriov_totalvfs=4,
                   sriov_numvfs=2)
H100 = admin.VariantInfo(name='H100', vendor='10de', device='2330')


class PreviewTest(base.ConductorTestCase):

    functions = (
        *base.EIGHT[:4], base.function(4, device='20b0'),
        base.function(5, used_by='boot_vga'), PF,
        *(base.function(
            6, id=f'{PF.id}/vf{number}', device='74b5', dsn=None,
            address=f'0000:06:00.{number + 1}', pf=PF.id, vf_index=number)
          for number in range(2)))
    variant = False
    cleaned_before = new_are_clean = False

    def preview(self, *variants, **page):
        return {found.host: found.devices for found in variant_admin.preview(
            self.db, variants, **page)}

    def check(self, *variants):
        """Check that a preview is what then happens; return it."""
        found = self.preview(*variants)
        self.assertEqual(0, self.dirty())
        for variant in variants:
            variant_admin.create(self.db, variant)
        self.assertEqual(sum(found['h1'].values()), self.dirty())
        return found['h1']

    def dirty(self):
        return [device.state for device in device_admin.list_all(
            self.db)].count('dirty')

    def test_new_devices_are_counted_by_variant(self):
        self.assertEqual({'H100': 4, 'A100': 1}, self.check(
            H100, admin.VariantInfo(
                name='A100', vendor='10de', device='20b0')))

    def test_gpu_that_has_vfs_is_left_out(self):
        self.assertEqual({'MI300X': 2}, self.check(admin.VariantInfo(
            name='MI300X', vendor='10de', device='74a1')))

    def test_clean_devices_count_if_the_new_policy_is_stricter(self):
        self.check(H100)
        self.clean_all()
        special = admin.VariantInfo(
            name='special', vendor='10de', device='2330', revision='a1')
        self.assertEqual({'h1': {}}, self.preview(special))
        strict = admin.VariantInfo(
            name='special', vendor='10de', device='2330', revision='a1',
            cleaning_policy='scrub')
        self.assertEqual({'special': 4}, self.check(strict))

    def test_hosts_come_in_pages(self):
        self.report_second_host(self.functions)
        first, second = variant_admin.preview(self.db, [H100])
        self.assertEqual((first,), variant_admin.preview(
            self.db, [H100], limit=1))
        self.assertEqual((second,), variant_admin.preview(
            self.db, [H100], marker=first.marker))
        self.assertEqual((), variant_admin.preview(
            self.db, [H100], marker=second.marker))

    def test_variant_that_cannot_be_created_is_refused(self):
        variant_admin.create(self.db, H100)
        self.assertRaises(exception.Conflict, self.preview, H100)
        self.assertRaises(exception.Invalid, self.preview, admin.VariantInfo(
            name='X', vendor='zz', device='2331'))
