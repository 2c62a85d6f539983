# SPDX-License-Identifier: Apache-2.0

from gpgpu_plugin import exception
from gpgpu_plugin import nvidia
from gpgpu_plugin.host.fake import kernel
from tests.unit.host.cleaning import card


class FakeVFIOTest(card.CardCase):

    machine = 'old-two-card'
    has_companions = True
    zeros = bytes(kernel.MEMORY)

    def test_marks_are_found_until_the_memory_is_cleared(self):
        places, kept = self.vfio.write_marks(self.address, 'seed')
        self.assertEqual((16, 16, 16, 0), (
            places, kept, self.vfio.find_marks(self.address, 'seed'),
            self.vfio.find_marks(self.address, 'other')))
        self.vfio.reset(self.address)
        self.assertEqual(0, self.vfio.find_marks(self.address, 'seed'))

    def test_reset_clears_all_functions(self):
        for address in (self.address, *self.gpu.companions):
            self.vfio.content(address)[:6] = b'secret'
        self.vfio.hot_reset(
            self.address, [self.address, *self.gpu.companions])
        for address in (self.address, *self.gpu.companions):
            self.assertEqual(self.zeros, self.vfio.content(address))

    def test_reset_of_the_kernel_clears_the_memory(self):
        with open(f'{self.root}/bus/pci/devices/{self.address}/reset_method',
                  'w', encoding='utf-8') as file:
            file.write('flr\n')
        self.vfio.content(self.address)[:6] = b'secret'
        self.host.kernel.write(f'bus/pci/devices/{self.address}/reset', '1')
        self.assertEqual(self.zeros, self.vfio.content(self.address))

    def test_reset_of_a_part_of_the_card_is_refused(self):
        exc = self.assertRaises(
            exception.HostError, self.vfio.hot_reset, self.address,
            [self.address])
        self.assertIn(self.gpu.companions[0], str(exc))

    def test_marks_that_were_only_tried_are_erased(self):
        self.assertEqual((16, 16), self.vfio.try_marks(self.address, 'seed'))
        self.assertEqual(self.zeros, self.vfio.content(self.address))

    def test_scrub_returns_how_many_bytes_were_kept(self):
        self.vfio.content(self.address)[:6] = b'secret'
        self.vfio.stuck.add(self.address)
        self.assertEqual(506, self.vfio.scrub(self.address, 512))
        self.vfio.stuck.clear()
        self.assertEqual(512, self.vfio.scrub(self.address, 512))
        self.assertEqual(self.zeros, self.vfio.content(self.address))

    def test_registers_of_an_unknown_model_are_not_read(self):
        self.vfio.content(self.address)[:6] = b'secret'
        exc = self.assertRaises(
            exception.HostError, self.vfio.reset_and_wait, self.address,
            [self.address, *self.gpu.companions])
        self.assertIn(f'10de:{self.gpu.device}', str(exc))
        self.assertEqual(b'secret', self.vfio.content(self.address)[:6])


class ClearTest(card.CardCase):

    def test_reset_is_waited_for(self):
        self.vfio.content(self.address)[:6] = b'secret'
        found = self.vfio.reset_and_wait(self.address, [self.address])
        registers = nvidia.REGISTERS[nvidia.Architecture.ADA]
        self.assertTrue(registers.is_cleared(found.boot, found.clear))
        self.assertEqual(
            bytes(kernel.MEMORY), self.vfio.content(self.address))
        self.vfio.uncleared.add(self.address)
        self.assertEqual(0, self.vfio.reset_and_wait(
            self.address, [self.address]).clear)
