# SPDX-License-Identifier: Apache-2.0
"""Tests of the page, by a strict parser; browsers are in tests/functional."""

import base64
import hashlib
import html.parser
import re

from oslotest import base

from gpgpu_plugin.gpu_map import mark
from gpgpu_plugin.gpu_map import page
from tests.fixtures import gpu_maps

# Elements without an end, and those whose end HTML lets authors leave out.
VOID = frozenset({'meta', 'input', 'br', 'rect', 'polyline'})
OPTIONAL = frozenset({'li', 'p', 'td', 'th', 'tr'})


class Reader(html.parser.HTMLParser):
    """Parser that keeps what a page has, and refuses crossed elements."""

    def __init__(self, content):
        super().__init__()
        self.open, self.elements, self.words = [], [], []
        self.feed(content)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag in VOID:
            return
        while self.open[-1] in OPTIONAL - {tag}:
            self.open.pop()
        if self.open.pop() != tag:
            raise AssertionError(f'</{tag}> at {self.getpos()}')

    def handle_data(self, data):
        self.words.append(data)

    def found(self, tag):
        return [attributes for name, attributes in self.elements
                if name == tag]


def render(devices=None, aspect=mark.Aspect.STATE, **fields):
    return page.render(gpu_maps.build(
        gpu_maps.small_cloud() if devices is None else devices, **fields),
        aspect)


class PageTest(base.BaseTestCase):

    def test_history_is_a_line_and_a_sentence(self):
        content = render([gpu_maps.gpu(number) for number in range(4)],
                         in_use={'h1': (0,) * 22 + (1, 3)})
        [line] = Reader(content).found('polyline')
        self.assertEqual((24, '0,8 1,8', '22,6 23,2'), (
            len(line['points'].split()), line['points'][:7],
            line['points'][-9:]))
        self.assertIn('<title>GPUs in use in the last 24 hours: at least 0, '
                      'at most 3, now 3 of 4</title>', content)
        self.assertNotIn('polyline points', render())

    def test_history_of_hosts_without_gpu_is_left_out(self):
        content = render([], hosts=[gpu_maps.host()], in_use={})
        self.assertEqual([], Reader(content).found('polyline'))

    def test_elements_are_nested(self):
        reader = Reader(render())
        self.assertEqual([], reader.open)
        self.assertEqual(2, len(reader.found('details')))

    def test_draining_host_says_so_in_words(self):
        self.assertIn(
            '! draining: no instance gets a GPU of it', ' '.join(Reader(
                render([], hosts=[gpu_maps.host(draining=True)])).words))

    def test_silent_host_says_so_in_words(self):
        words = ' '.join(Reader(render(
            [], hosts=[gpu_maps.host(host_state='silent')])).words)
        self.assertIn('! nova-compute is silent since 2026-11-24T12:00:00Z',
                      words)
        self.assertNotIn('nova-compute called at', words)

    def test_gpu_that_is_ill_says_so_in_words(self):
        reader = Reader(render([
            gpu_maps.gpu(0, 'assigned', health='failed',
                         health_reason='it does not answer'),
            gpu_maps.gpu(1, health='ok')]))
        text = ' '.join(' '.join(reader.words).split())
        self.assertIn('assigned, ! failed it does not answer', text)
        self.assertIn('1 assigned, 1 available, 1 ! failed', text)
        self.assertEqual(1, sum('ill' in attributes['class'].split()
                                for attributes in reader.found('b')))

    def test_every_gpu_is_there_with_its_facts(self):
        text = ' '.join(' '.join(Reader(render()).words).split())
        one, two = (gpu_maps.name_uuid(name) for name in ('i0', 'v2'))
        for words in ('NUMA node 1', 'switch 0000:00:01.0/00.0',
                      f'0000:00:00.0 H100 assigned, project A {one}',
                      '0000:06:00.0 H100 quarantined option ROM differs',
                      '0000:01:00.0 no variant unmanaged',
                      f'T4-4Q, assigned, project B {two}'):
            self.assertIn(words, text)

    def test_page_needs_nothing_else(self):
        content = render()
        reader = Reader(content)
        for tag in ('script', 'link', 'img', 'iframe', 'object', 'base'):
            self.assertEqual([], reader.found(tag), tag)
        for tag, attributes in reader.elements:
            self.assertEqual(set(), {
                name for name in attributes
                if name.startswith('on') or name in ('src', 'href', 'style')},
                tag)
        self.assertNotIn('url(', content)
        self.assertNotIn('@import', content)

    def test_policy_allows_the_style_sheet_alone(self):
        content = render()
        [style] = re.findall('<style>(.*?)</style>', content, re.DOTALL)
        digest = base64.b64encode(
            hashlib.sha256(style.encode()).digest()).decode()
        [policy] = [meta['content'] for meta in Reader(content).found('meta')
                    if meta.get('http-equiv') == 'Content-Security-Policy']
        self.assertEqual(
            f"default-src 'none'; style-src 'sha256-{digest}'; "
            f"base-uri 'none'; form-action 'none'", policy)

    def test_text_of_hosts_and_users_is_escaped(self):
        for fields in ({'on': gpu_maps.HOSTILE},
                       {'variant': gpu_maps.HOSTILE},
                       {'address': gpu_maps.HOSTILE},
                       {'reason': gpu_maps.HOSTILE},
                       {'used_by': gpu_maps.HOSTILE, 'project_id': 'p'},
                       {'used_by': 'i', 'project_id': gpu_maps.HOSTILE}):
            content = render([gpu_maps.gpu(0, **fields)], types=[
                gpu_maps.vgpu_type(gpu_maps.HOSTILE,
                                   variant=gpu_maps.HOSTILE)])
            reader = Reader(content)
            self.assertEqual([], reader.found('script'), fields)
            self.assertIn(gpu_maps.HOSTILE, ' '.join(reader.words))

    def test_problem_of_a_host_is_shown_and_escaped(self):
        reader = Reader(render([gpu_maps.gpu(0)], hosts=[
            gpu_maps.host(problems=(gpu_maps.HOSTILE,))]))
        self.assertIn(gpu_maps.HOSTILE, ' '.join(reader.words))
        self.assertEqual([], reader.found('script'))

    def test_state_of_a_newer_conductor_is_named(self):
        content = render([gpu_maps.gpu(0, 'melted')])
        self.assertIn('1 melted', content)
        self.assertIn('another state', content)

    def test_chosen_aspect_is_checked(self):
        [checked] = [found['id'] for found in Reader(
            render(aspect=mark.Aspect.TYPE)).found('input')
            if 'checked' in found]
        self.assertEqual('by-type', checked)

    def test_many_hosts_are_closed(self):
        for count, opened in ((page.OPEN_HOSTS, page.OPEN_HOSTS),
                              (page.OPEN_HOSTS + 1, 0)):
            reader = Reader(render(
                gpu_maps.gpu(0, on=f'h{number}') for number in range(count)))
            self.assertEqual(opened, sum(
                'open' in found for found in reader.found('details')))

    def test_bars_have_the_parts_of_the_capacity(self):
        rects = Reader(render(types=[gpu_maps.vgpu_type()])).found('rect')
        self.assertEqual(('25.0%', '50.0%', '25.0%'), (
            rects[0]['width'], rects[1]['width'], rects[1]['x']))

    def test_bar_of_nothing_is_empty(self):
        rects = Reader(render(types=[gpu_maps.vgpu_type(
            max_capacity=0, remaining_capacity=0, assigned=0)])).found('rect')
        self.assertEqual(('0.0%', '0.0%'),
                         (rects[0]['width'], rects[1]['width']))

    def test_empty_cloud_is_a_page(self):
        self.assertIn('No host has reported a GPU', render([], types=[]))
