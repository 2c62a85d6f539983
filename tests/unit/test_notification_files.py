# SPDX-License-Identifier: Apache-2.0
"""Tests that samples and definitions of notifications are those of the code.

A sample shows one notification of each type. It is compared with what the
code writes in tests/fixtures/notified.py: its names, values and types, but for
UUIDs and times, of which only the form counts, and seconds.
"""

from __future__ import annotations

import collections
import json
import pathlib
import re
import typing
from collections.abc import Iterator

import yaml

from gpgpu_plugin.domain import event
from tests.fixtures import notified
from tests.unit import test_meta
from tests.unit.conductor import base

FOLDER = (test_meta.TOP / 'doc' / 'source' / 'admin' / 'notification_samples')
PAGE = 'admin/notifications.rst'

CEILOMETER = test_meta.TOP / 'etc' / 'ceilometer'
DATA = "$.payload.'gpgpu_object.data'."

_FORMS = (
    ('UUID', r'[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}'),
    ('TIME', r'\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ'),
    ('TIMESTAMP', r'\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}'))


def sample_path(event_type: str) -> pathlib.Path:
    """Return the file of the sample of a type."""
    return FOLDER / (event_type.removeprefix('gpgpu.')
                     .replace('.', '-').replace('_', '-') + '.json')


def sample(event_type: str) -> dict[str, typing.Any]:
    """Return the sample of a type."""
    found: dict[str, typing.Any] = json.loads(
        sample_path(event_type).read_text(encoding='utf-8'))
    return found


def formed(value: object) -> object:
    """Return a value with names of forms for UUIDs and times."""
    if isinstance(value, dict):
        return {name: 'SECONDS' if name == 'seconds' else formed(item)
                for name, item in value.items()}
    if isinstance(value, str):
        return next((form for form, pattern in _FORMS
                     if re.fullmatch(pattern, value)), value)
    return value


class SamplesTest(base.ConductorTestCase):

    functions = notified.FUNCTIONS

    def setUp(self) -> None:
        super().setUp()
        notified.everything(self)
        self.messages = notified.messages(self.db)

    def test_each_sample_is_a_notification_that_is_written(self) -> None:
        for event_type in event.EventType:
            written = [formed(message) for message in self.messages
                       if message['event_type'] == event_type]
            self.assertIn(formed(sample(event_type)), written, event_type)

    def test_each_type_has_one_sample(self) -> None:
        self.assertEqual(
            sorted(map(sample_path, event.EventType)),
            sorted(FOLDER.iterdir()))

    def test_sample_of_other_values_is_found(self) -> None:
        changed = sample('gpgpu.device.update')
        changed['payload']['gpgpu_object.data']['state'] = 'lost'
        self.assertNotIn(formed(changed), [
            formed(message) for message in self.messages])


class PageTest(base.base.BaseTestCase):

    def test_page_has_each_sample(self) -> None:
        page = test_meta.doc(PAGE)
        self.assertEqual(
            sorted(path.name for path in FOLDER.iterdir()),
            sorted(re.findall(
                r'literalinclude:: notification_samples/(\S+)', page)))

    def test_page_has_each_type_with_its_priority(self) -> None:
        rows = dict(re.findall(
            r'^   \* - ``(gpgpu\.[a-z._]+)``\n     - (\w+)$',
            test_meta.doc(PAGE), re.MULTILINE))
        self.assertEqual(event.PRIORITIES, rows)


def meters() -> list[dict[str, typing.Any]]:
    """Return the definitions of the meters of Ceilometer."""
    text = (CEILOMETER / 'meters.d' / 'gpgpu.yaml').read_text()
    found: list[dict[str, typing.Any]] = yaml.safe_load(text)['metric']
    return found


def resources() -> list[dict[str, typing.Any]]:
    """Return the definitions of the resources of Gnocchi."""
    text = (CEILOMETER / 'gnocchi_resources.yaml').read_text()
    found: list[dict[str, typing.Any]] = yaml.safe_load(text)['resources']
    return found


def types_of(meter: dict[str, typing.Any]) -> list[str]:
    """Return the types of notifications that a meter selects."""
    patterns = meter['event_type']
    return [event_type for event_type in event.EventType
            if any(re.match(pattern, event_type) for pattern in (
                [patterns] if isinstance(patterns, str) else patterns))]


def paths(meter: dict[str, typing.Any]) -> Iterator[str]:
    """Yield the paths in a notification that a meter names."""
    for values in (meter, meter.get('metadata', {})):
        for value in values.values():
            if isinstance(value, str) and value.startswith('$'):
                yield value


class CeilometerTest(base.base.BaseTestCase):

    def test_each_path_of_a_meter_is_in_the_samples(self) -> None:
        for meter in meters():
            found = list(paths(meter))
            self.assertGreater(len(found), 2)
            self.assertTrue(types_of(meter), meter['name'])
            for event_type in types_of(meter):
                data = sample(event_type)['payload']['gpgpu_object.data']
                for path in found:
                    self.assertTrue(path.startswith(DATA), path)
                    self.assertIn(path.removeprefix(DATA), data)

    def test_path_that_is_in_no_sample_is_found(self) -> None:
        data = sample('gpgpu.device.missing')['payload']['gpgpu_object.data']
        self.assertNotIn('instance_uuid', data)

    def test_each_meter_has_what_ceilometer_requires(self) -> None:
        for meter in meters():
            self.assertLessEqual(
                {'name', 'type', 'event_type', 'unit', 'volume',
                 'resource_id'}, meter.keys())
            self.assertIn(meter['type'], ('gauge', 'delta', 'cumulative'))

    def test_each_meter_is_a_metric_of_one_resource(self) -> None:
        metrics = collections.Counter(
            name for resource in resources() for name in resource['metrics'])
        self.assertEqual({meter['name']: 1 for meter in meters()}, metrics)

    def test_each_attribute_is_in_the_metadata_of_each_meter(self) -> None:
        metadata = {meter['name']: set(meter['metadata'])
                    for meter in meters()}
        for resource in resources():
            attributes = {path.removeprefix('resource_metadata.')
                          for path in resource['attributes'].values()}
            for name in resource['metrics']:
                self.assertEqual(attributes, metadata[name], name)

    def test_page_creates_each_attribute_and_shows_each_meter(self) -> None:
        page = test_meta.doc(PAGE)
        commands = dict(re.findall(
            r'resource-type create (\w+) ((?:.*\\\n)*.*)', page))
        self.assertEqual(
            {resource['resource_type']: set(resource['attributes'])
             for resource in resources()},
            {name: set(re.findall(r'-a (\w+):', text))
             for name, text in commands.items()})
        for meter in meters():
            self.assertIn(f'``{meter["name"]}``', page)
