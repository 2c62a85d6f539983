# SPDX-License-Identifier: Apache-2.0
"""A second start of nova-compute for a host, on another machine."""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
import types

from gpgpu_plugin.compute import resource_tracker
from gpgpu_plugin.rpc import conductor_client
from gpgpu_plugin.rpc import transport as rpc_transport
from tests.fixtures import virt_driver
from tests.storm import host as host_mod

FENCED = 0
ACCEPTED = 3
UNANSWERED = 4
_ATTEMPTS = 3


def run(setting: host_mod.Setting) -> None:
    """Start once, with an empty book, and exit with what came of it.

    It does not serve calls: the broker would give it the host's messages.

    :param setting: that of the host whose name it uses
    """
    threading.Thread(target=host_mod.end_with_parent, daemon=True).start()
    folder = setting.folder / f'second-{os.getpid()}'
    folder.mkdir()
    logging.basicConfig(filename=folder / 'log', level=logging.INFO,
                        force=True)
    setting = dataclasses.replace(setting, folder=folder)
    conf = host_mod.configuration(setting)
    tracker = resource_tracker.ResourceTracker(
        conf, setting.name, host_mod.machine(setting),
        conductor_client.ConductorAPI(conf, rpc_transport.get_transport(conf)),
        virt_driver.make(types.SimpleNamespace()),
        # It knows no instance.
        lambda assignments, **kwargs: [
            assignment.uuid for assignment in assignments])
    tracker.set_node(setting.name, setting.node_uuid)
    for _ in range(_ATTEMPTS):
        tracker.run_once()
        # The book knows it also if another session has followed.
        if tracker.assignments.session():
            os._exit(ACCEPTED)
        if tracker.session.is_fenced:
            os._exit(FENCED)
    os._exit(UNANSWERED)
