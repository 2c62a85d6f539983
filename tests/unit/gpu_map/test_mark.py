# SPDX-License-Identifier: Apache-2.0
"""Tests of letters and colours of a map."""

from oslotest import base

from gpgpu_plugin.domain import device
from gpgpu_plugin.gpu_map import mark
from tests.fixtures import gpu_maps


def luminance(colour):
    """Return the relative luminance of WCAG 2.2."""
    parts = [int(colour[n:n + 2], 16) / 255 for n in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def rgb(number):
    """Return a colour of the cube of 256 colours of a terminal."""
    if number >= 232:
        return '#' + f'{8 + 10 * (number - 232):02x}' * 3
    levels = (0, 95, 135, 175, 215, 255)
    number -= 16
    return '#' + ''.join(f'{levels[number // scale % 6]:02x}'
                         for scale in (36, 6, 1))


class ColourTest(base.BaseTestCase):

    def test_letter_has_contrast_to_its_colour(self):
        for colour in mark.COLOURS:
            self.assertLessEqual(4.5, contrast(
                colour.background, colour.letter), colour)
            self.assertLessEqual(4.5, contrast(
                rgb(colour.terminal), rgb(colour.terminal_letter)), colour)

    def test_colours_are_different(self):
        for name in ('background', 'terminal'):
            self.assertEqual(len(mark.COLOURS), len(
                {getattr(colour, name) for colour in mark.COLOURS}))


class StateTest(base.BaseTestCase):

    def test_each_state_has_a_letter_and_a_colour_of_its_own(self):
        # Lists, of which maps are drawn, leave out retired devices.
        self.assertEqual({*device.SHOWN_STATES} - {'retired'},
                         set(mark.STATES))
        for name in ('symbol', 'colour'):
            self.assertEqual(len(mark.STATES), len({
                getattr(found, name) for found in mark.STATES.values()}))


class SymbolTest(base.BaseTestCase):

    def test_symbols_go_on_after_z(self):
        self.assertEqual(['A', 'Z', 'AA', 'AZ', 'BA', 'ZZ', 'AAA'], [
            mark.symbol(number)
            for number in (0, 25, 26, 51, 52, 701, 702)])


class MarksTest(base.BaseTestCase):

    def symbols(self, aspect, devices):
        found = gpu_maps.build(devices)
        marks = mark.Marks(found)
        return ''.join(marks.of_block(aspect, block).symbol
                       for gpu in found.gpus for block in (gpu, *gpu.vgpus))

    def test_project_with_most_gpus_has_the_first_letter(self):
        one, two = gpu_maps.PROJECTS
        self.assertEqual('BA-A', self.symbols(mark.Aspect.OWNER, [
            gpu_maps.gpu(0, 'assigned', **gpu_maps.owned('i1', one)),
            gpu_maps.gpu(1, 'assigned', **gpu_maps.owned('i2', two)),
            gpu_maps.gpu(2),
            gpu_maps.gpu(3, 'assigned', **gpu_maps.owned('i3', two))]))

    def test_gpu_of_several_projects_or_types_says_so(self):
        parent = gpu_maps.gpu(0, 'assigned', variant='T4')
        devices = [
            parent, gpu_maps.vgpu(0, parent, **gpu_maps.owned('i1')),
            gpu_maps.vgpu(1, parent, vgpu_type='T4-1Q',
                          **gpu_maps.owned('i2', gpu_maps.PROJECTS[1]))]
        self.assertEqual('*AB', self.symbols(mark.Aspect.OWNER, devices))
        self.assertEqual('*BA', self.symbols(mark.Aspect.TYPE, devices))
        self.assertEqual('AAA', self.symbols(mark.Aspect.STATE, devices))

    def test_gpu_with_vgpus_of_one_type_shows_the_type(self):
        parent = gpu_maps.gpu(0, 'assigned', variant='T4')
        self.assertEqual('AA', self.symbols(
            mark.Aspect.TYPE, [parent, gpu_maps.vgpu(0, parent)]))

    def test_state_of_a_newer_conductor_has_a_mark(self):
        self.assertEqual('?', self.symbols(
            mark.Aspect.STATE, [gpu_maps.gpu(0, 'melted')]))
        self.assertNotIn(mark.OTHER_STATE.colour, {
            found.colour for found in mark.STATES.values()})

    def test_legends_count_gpus_and_vgpus(self):
        legends = mark.Marks(gpu_maps.build(gpu_maps.small_cloud())).legends
        self.assertEqual(
            [('A', 'assigned', 3, 2), ('P', 'provisioning', 1, 0),
             ('F', 'available', 2, 0), ('D', 'dirty', 1, 0),
             ('C', 'cleaning', 1, 0), ('Q', 'quarantined', 1, 0),
             ('X', 'disabled', 1, 0), ('M', 'missing', 1, 0),
             ('U', 'unmanaged', 1, 0)],
            [(entry.mark.symbol, entry.mark.text, entry.gpus, entry.vgpus)
             for entry in legends[mark.Aspect.STATE]])
        self.assertEqual(
            [('A', 2, 1), ('B', 1, 1), ('*', 1, 0), ('-', 8, 0)],
            [(entry.mark.symbol, entry.gpus, entry.vgpus)
             for entry in legends[mark.Aspect.OWNER]])
