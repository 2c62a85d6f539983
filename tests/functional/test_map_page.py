# SPDX-License-Identifier: Apache-2.0
"""The page of ``gpgpu-manage map`` in Chromium."""

from __future__ import annotations

import pathlib
import typing
import zlib

import fixtures
from oslotest import base

from gpgpu_plugin.gpu_map import mark
from gpgpu_plugin.gpu_map import page
from gpgpu_plugin.objects import admin
from tests.fixtures import browser as browser_fixture
from tests.fixtures import gpu_maps
from tests.fixtures import patience
from tests.fixtures import services

IN_USE = (*(0,) * 20, 1, 3, 2, 4)
BACKGROUND = ('getComputedStyle(document.querySelector("{}"), "::before")'
              '.backgroundColor')
LETTER = 'getComputedStyle(document.querySelector("{}"), "::before").content'
# WCAG's contrast of an element's text to what is behind it.
CONTRASTS = """
(() => {
  const parts = colour => colour.match(/[0-9.]+/g).map(Number)
  const luminance = colour => parts(colour).slice(0, 3)
    .map(part => part / 255)
    .map(part => part <= 0.04045 ? part / 12.92
                                 : ((part + 0.055) / 1.055) ** 2.4)
    .reduce((sum, part, n) => sum + part * [0.2126, 0.7152, 0.0722][n], 0)
  const behind = element => {
    const colour = getComputedStyle(element).backgroundColor
    return parts(colour)[3] === 0 && element.parentElement
      ? behind(element.parentElement) : colour
  }
  const found = {}
  for (const element of document.querySelectorAll('main *, header *')) {
    if (![...element.childNodes].some(
        node => node.nodeType === 3 && node.data.trim())) continue
    const both = [luminance(getComputedStyle(element).color),
                  luminance(behind(element))].sort((a, b) => a - b)
    const contrast = (both[1] + 0.05) / (both[0] + 0.05)
    const name = element.tagName + '.' + element.className
    found[name] = Math.min(found[name] ?? 99, contrast)
  }
  return found
})()
"""


def rgb(colour: mark.Colour) -> str:
    """Return a colour as browsers write it."""
    return 'rgb({}, {}, {})'.format(*bytes.fromhex(colour.background[1:]))


def pixels(png: bytes) -> bytes:
    """Return the data of a PNG without its compression."""
    data, place = b'', 8
    while place < len(png):
        size = int.from_bytes(png[place:place + 4])
        if png[place + 4:place + 8] == b'IDAT':
            data += png[place + 8:place + 8 + size]
        place += size + 12
    return zlib.decompress(data)


class MapPageTest(base.BaseTestCase):
    """The page does what it says, in a browser, without JavaScript."""

    def setUp(self) -> None:
        super().setUp()
        program = browser_fixture.program()
        if program is None:
            services.missing(self, 'Chromium is not installed')
        self.browser = self.useFixture(browser_fixture.Browser(program))

    def show(self, devices: list[admin.DeviceInfo] | None = None,
             **fields: typing.Any) -> None:
        """Open the page of a map."""
        file = pathlib.Path(
            self.useFixture(fixtures.TempDir()).path, 'map.html')
        file.write_text(page.render(
            gpu_maps.build(devices or gpu_maps.small_cloud(),
                           in_use={'h1': IN_USE}, **fields),
            mark.Aspect.STATE), encoding='utf-8')
        self.browser.open(file)

    def complaints(self) -> list[dict[str, typing.Any]]:
        """Return what the browser wrote to its console."""
        return self.browser.reported(
            'Log.entryAdded', 'Runtime.consoleAPICalled',
            'Runtime.exceptionThrown')

    def test_page_of_hostile_text_runs_and_requests_nothing(self) -> None:
        self.show([*gpu_maps.small_cloud(), gpu_maps.gpu(
            0, on=gpu_maps.HOSTILE, variant=gpu_maps.HOSTILE,
            reason=gpu_maps.HOSTILE)])
        self.assertEqual([], self.complaints())
        self.assertEqual(1, len(self.browser.reported(
            'Network.requestWillBeSent')))
        self.assertEqual(0, self.browser.evaluate('document.scripts.length'))
        self.assertEqual(gpu_maps.HOSTILE, self.browser.evaluate(
            'document.querySelector("h3").textContent'))

    def test_switch_changes_colours_and_letters_by_keyboard(self) -> None:
        self.show()
        first, shared = '.gpu', '.gpu:has(.vgpu)'
        self.browser.evaluate('document.querySelector("#by-state").focus()')
        expected = (
            ('state', first, mark.BLUE, 'A'), ('state', shared,
                                               mark.BLUE, 'A'),
            ('owner', first, mark.BLUE, 'A'), ('owner', shared,
                                               mark.GREY, '*'),
            ('type', first, mark.BLUE, 'A'), ('type', shared,
                                              mark.ORANGE, 'B'))
        for aspect in mark.Aspect:
            self.assertTrue(self.browser.evaluate(
                f'document.querySelector("#by-{aspect}").checked'))
            self.assertEqual(
                [item[1:] for item in expected if item[0] == aspect],
                [(selector, next(
                    colour for colour in mark.COLOURS
                    if rgb(colour) == self.browser.evaluate(
                        BACKGROUND.format(selector))),
                  self.browser.evaluate(
                      LETTER.format(selector)).strip('"'))
                 for selector in (first, shared)])
            self.assertEqual([aspect], [
                other for other in mark.Aspect if self.browser.evaluate(
                    f'document.querySelector(".legend-{other}")'
                    f'.checkVisibility()')])
            self.browser.press('ArrowRight', 39)

    def test_page_fits_wide_and_narrow_windows(self) -> None:
        self.show()
        self.check_width()

    def check_width(self) -> None:
        """Check that nothing is wider than the window."""
        for width in (1280, 400):
            self.browser.resize(width)
            for opened in ('true', 'false'):
                self.browser.evaluate(
                    'document.querySelectorAll("details").forEach('
                    f'found => {{ found.open = {opened} }})')
                self.assertEqual((width, 0), (
                    self.browser.evaluate(
                        'document.documentElement.scrollWidth'),
                    self.browser.evaluate(
                        '[...document.querySelectorAll("main *")].filter('
                        'found => !found.closest("svg")'
                        f' && found.getBoundingClientRect().right > {width}'
                        ').length')))

    def test_picture_is_not_blank(self) -> None:
        self.show()
        self.assertLess(100, len(set(pixels(self.browser.screenshot()))))

    def test_text_has_contrast_in_light_dark_and_print(self) -> None:
        self.show()
        self.check_contrast()

    def check_contrast(self) -> None:
        """Check the contrast of all text in each way to show the page."""
        for media, scheme in (('screen', 'light'), ('screen', 'dark'),
                              ('print', 'light')):
            self.browser.prefer(media, color_scheme=scheme)
            found = self.browser.evaluate(CONTRASTS)
            self.assertGreater(len(found), 10)
            self.assertEqual({}, {
                name: contrast for name, contrast in found.items()
                if contrast < 4.5}, (media, scheme))

    def spoken(self, role: str) -> list[str]:
        """Return what a screen reader says about the nodes of a role."""
        nodes = {node['nodeId']: node for node in self.browser.accessible()}

        def words(node: dict[str, typing.Any]) -> str:
            if node['name']['value']:
                return str(node['name']['value'])
            return ' '.join(words(nodes[child]) for child
                            in node['childIds'] if child in nodes)
        return [words(node) for node in nodes.values()
                if node['role']['value'] == role]

    def wait_spoken(self, role: str, expected: set[str]) -> None:
        """Wait until nodes of a role say what is expected.

        What is outside the window comes a moment later.
        """
        self.assertTrue(patience.wait_until(
            lambda: expected <= set(self.spoken(role))), self.spoken(role))

    def test_screen_reader_gets_every_gpu_and_control(self) -> None:
        self.show()
        self.wait_spoken('listitem', {
            f'0000:00:00.0  H100 \n assigned, project A \n '
            f'{gpu_maps.name_uuid("i0")}',
            '0000:03:00.0  H100 \n available',
            '0000:06:00.0  H100 \n quarantined \n option ROM differs',
            f'T4-4Q, assigned, project B \n {gpu_maps.name_uuid("v2")}'})
        blocks = [block for gpu in gpu_maps.build(gpu_maps.small_cloud()).gpus
                  for block in (gpu, *gpu.vgpus)]
        self.assertEqual(len(blocks), len([
            item for item in self.spoken('listitem')
            if 'switch' not in item]))
        self.assertEqual(list(mark.Aspect), self.spoken('radio'))
        self.wait_spoken('heading', {
            'GPU map', 'Legend', 'Capacity', 'Hosts', 'h1', 'h2',
            'NUMA node 0', 'switch 0000:20:01.0/00.0'})
        self.assertEqual([f'GPUs in use in the last 24 hours: {numbers}'
                          for numbers in ('at least 0, at most 4, now 4 of 8',
                                          'at least 0, at most 0, now 0 of 3')
                          ], self.spoken('image'))

    def test_link_partitions_are_a_table_in_words(self) -> None:
        self.show([gpu_maps.gpu(number, link_partitions=names)
                   for number, names in enumerate((
                       ('p0', 'p01'), ('p1', 'p01'), ('p23',), ('p23',)))],
                  groups=[gpu_maps.linked(p0='overlapped', p1='overlapped',
                                          p01='taken', p23='broken')])
        self.wait_spoken('row', {
            'Variant GPUs of each State Number Names',
            'H100 1 overlapped 2 p0, p1', 'H100 2 taken 1 p01',
            'H100 2 broken 1 p23'})
        self.wait_spoken('listitem', {
            '0000:00:00.0  H100 \n available \n link partitions p0, p01',
            '0000:02:00.0  H100 \n available \n link partition p23'})
        self.assertIn('Link partitions', self.spoken('caption'))
        self.check_contrast()
        self.check_width()

    def test_history_is_a_line_within_its_picture(self) -> None:
        self.show()
        line, frame = (self.browser.evaluate(
            'JSON.parse(JSON.stringify(document.querySelector'
            f'(".history{part}").getBoundingClientRect()))')
            for part in (' polyline', ''))
        self.assertGreater(line['width'], 100)
        # Half of the GPUs are in use at most.
        self.assertGreater(line['height'], 6)
        for edge in ('left', 'top'):
            self.assertGreaterEqual(line[edge], frame[edge])
        for edge in ('right', 'bottom'):
            self.assertLessEqual(line[edge], frame[edge])
        self.assertEqual('none', self.browser.evaluate(
            'getComputedStyle(document.querySelector(".history polyline"))'
            '.fill'))

    def test_host_is_opened_by_keyboard(self) -> None:
        hosts = [f'h{number}' for number in range(page.OPEN_HOSTS + 1)]
        self.show([gpu_maps.gpu(0, on=host) for host in hosts])
        is_open = 'document.querySelector("details").open'
        self.assertFalse(self.browser.evaluate(is_open))
        self.wait_spoken('DisclosureTriangle', {
            f'{host} 1 available GPUs in use in the last 24 hours: at least '
            f'0, at most 0, now 0 of 1 nova-compute called at '
            f'2026-11-24T12:00:00Z' for host in hosts if host != 'h1'})
        self.browser.evaluate('document.querySelector("summary").focus()')
        self.browser.press('Enter', 13, '\r')
        self.assertTrue(self.browser.evaluate(is_open))
