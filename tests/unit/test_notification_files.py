#    Licensed under the Apache License, Version 2.0 (the "License"); you may
#    not use this file except in compliance with the License. You may obtain
#    a copy of the License at
#
#         http://www.apache.org/licenses/LICENSE-2.0
#
#    Unless required by applicable law or agreed to in writing, software
#    distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
#    WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
#    License for the specific language governing permissions and limitations
#    under the License.
"""Tests that samples and definitions of notifications are those of the code.

A sample shows one notification of each type. It is compared with what the
code writes in tests/fixtures/notified.py: its names, values and types, but for
UUIDs and times, of which only the form counts, and seconds.
"""

from __future__ import annotations

import json
import pathlib
import re
import typing

from gpgpu_plugin.domain import notification
from tests.fixtures import notified
from tests.unit import test_meta
from tests.unit.conductor import base

FOLDER = (test_meta.TOP / 'doc' / 'source' / 'admin' / 'notification_samples')
PAGE = 'admin/notifications.rst'

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
        for event_type in notification.EventType:
            written = [formed(message) for message in self.messages
                       if message['event_type'] == event_type]
            self.assertIn(formed(sample(event_type)), written, event_type)

    def test_each_type_has_one_sample(self) -> None:
        self.assertEqual(
            sorted(map(sample_path, notification.EventType)),
            sorted(FOLDER.iterdir()))

    def test_sample_of_other_values_is_found(self) -> None:
        changed = sample('gpgpu.device.update')
        changed['payload']['gpgpu_object.data']['state'] = 'lost'
        self.assertNotIn(formed(changed), [
            formed(message) for message in self.messages])


class PageTest(base.base.BaseTestCase):

    def test_page_has_each_type_and_its_sample(self) -> None:
        page = test_meta.doc(PAGE)
        self.assertEqual(
            sorted(notification.EventType),
            sorted(re.findall(r'^   \* - ``(gpgpu\.[a-z._]+)``$', page,
                              re.MULTILINE)))
        self.assertEqual(
            sorted(path.name for path in FOLDER.iterdir()),
            sorted(re.findall(
                r'literalinclude:: notification_samples/(\S+)', page)))

    def test_page_has_priority_of_each_type(self) -> None:
        rows = dict(re.findall(
            r'^   \* - ``(gpgpu\.[a-z._]+)``\n     - (\w+)$',
            test_meta.doc(PAGE), re.MULTILINE))
        self.assertEqual(notification.PRIORITIES, rows)
