# SPDX-License-Identifier: Apache-2.0
"""Users of one host: threads that build, move and delete instances."""

from __future__ import annotations

import functools
import logging
import random
import threading
import time
import typing
from collections.abc import Callable
from collections.abc import Sequence

import oslo_messaging

from gpgpu_plugin import exception
from gpgpu_plugin.compute import resource_tracker
from gpgpu_plugin.virt import assignment_selector
from gpgpu_plugin.virt import steps
from tests.storm import ground_truth
from tests.storm import moves
from tests.storm import nova as nova_mod

LOG = logging.getLogger(__name__)

_Arguments = typing.ParamSpec('_Arguments')

_THREADS = 6
_SPAWN_TIME = 0.2
"""Mean duration of a spawn by libvirt in seconds."""


class Workload:
    """Builds, moves and deletes of instances on one host.

    :param hosts: names of all hosts
    :param wake: called when the tracker may have tasks to run
    """

    def __init__(self, tracker: resource_tracker.ResourceTracker,
                 truth: ground_truth.GroundTruth, nova: nova_mod.Nova,
                 hosts: Sequence[str], rng: random.Random,
                 wake: Callable[[], None]) -> None:
        self._tracker = tracker
        self._truth = truth
        self._nova = nova
        self._hosts = hosts
        self._rng = rng
        self._wake = wake
        self._moves = moves.Moves(tracker, truth, nova, rng)
        self._ended = threading.Event()
        nova.replace_lost_steps(tracker.host)
        self._threads = [
            threading.Thread(target=self._run, daemon=True)
            for _ in range(_THREADS)]

    def start(self) -> None:
        """Begin to build, move and delete."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Begin nothing else, and wait until no instance of any host moves."""
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def delete_all(self) -> None:
        """Delete all instances."""
        while step := self._nova.take_resting(self._tracker.host):
            self._delete(step.uuid)

    def _run(self) -> None:
        host = self._tracker.host
        while not (self._ended.is_set() and self._nova.is_at_rest()):
            step = (self._nova.take_move(host) if self._ended.is_set()
                    else self._nova.take_step(host))
            if step is not None:
                self._do(step)
            elif self._ended.is_set():
                time.sleep(0.1)
            elif self._rng.random() < 0.12:
                self._build()
            else:
                self._ended.wait(self._rng.uniform(0.1, 0.5))

    def _do(self, step: nova_mod.Step) -> None:
        if step.name in ('delete', nova_mod.DELETE_ERROR):
            self._delete(step.uuid)
        elif step.name == 'resize':
            self._resize(step)
        elif not self._succeeds(self._moves.run, step):
            self._truth.count('moves failed')
            self._nova.update(step, status='error', task=None)
            if step.name == 'prep_resize':
                # The guest runs as before: Nova tries another host.
                self._nova.set_step(
                    step.uuid, self._rng.choice(('delete', 'resize')), None,
                    self._rng.uniform(0, 0.5))
            else:
                self._nova.set_step(step.uuid, nova_mod.DELETE_ERROR)
        self._wake()

    def _build(self) -> None:
        gpus = self._gpus()
        instance = self._nova.begin_build(
            self._tracker.host, gpus, again=self._rng.random() < 0.3)
        if self._succeeds(self._spawn, instance, gpus):
            self._truth.count('built')
            self._nova.finish_build(
                instance, self._rng.choice(('delete', 'resize', 'resize')),
                self._rng.uniform(0, 0.8))
        else:
            self._nova.delete(instance)
            self._wake()
            self._ended.wait(self._rng.uniform(0.2, 1))

    def _gpus(self) -> int:
        return self._rng.choice((1, 1, 1, 2))

    def _succeeds(self, action: Callable[_Arguments, None],
                  *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> bool:
        """Run an action, and count why it failed if it did."""
        try:
            action(*args, **kwargs)
        except exception.ClaimDenied:
            self._truth.count('denied')
        except exception.ConductorUnavailable:
            self._truth.count('timed out')
        except (exception.GPUPluginException, moves.LibvirtError,
                oslo_messaging.RemoteError) as exc:
            LOG.info('%s failed: %s', args, exc)
            self._truth.count('failed')
        except Exception:
            LOG.exception('Unexpected error in %s', args)
            self._truth.count('unexpected')
        else:
            return True
        return False

    def _spawn(self, instance: str, gpus: int) -> None:
        with self._tracker.builds.running(instance):
            steps.execute(steps.Spawn(
                tracker=self._tracker, request=moves.claim_request(
                    instance, self._tracker.host, gpus),
                spawn=functools.partial(self._start_guest, instance),
                destroy=lambda: self._truth.end(instance),
                claimed=lambda asked, claim: self._truth.count('granted')))

    def _start_guest(self, instance: str) -> None:
        if self._rng.random() < 0.05:
            raise moves.LibvirtError
        time.sleep(self._rng.expovariate(1 / _SPAWN_TIME))
        self._truth.start(instance, [
            assignment.stable_id for assignment
            in self._tracker.assignments.of_instance(instance)
            if assignment_selector.of_build(assignment)])

    def _resize(self, step: nova_mod.Step) -> None:
        """Begin a resize to any host, also to this one."""
        gpus = self._gpus()
        # Nova refuses a resize to the same flavor on the same host.
        self._nova.begin_migration(step, self._rng.choice([
            host for host in self._hosts
            if host != step.host or gpus != step.gpus]), gpus)

    def _delete(self, instance: str) -> None:
        with self._tracker.builds.running(instance):
            self._truth.end(instance)
            self._tracker.release_instance(instance)
        self._nova.delete(instance)
        self._truth.count('deleted')
        self._wake()
