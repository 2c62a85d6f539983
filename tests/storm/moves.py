# SPDX-License-Identifier: Apache-2.0
"""Steps of a resize on source and destination, as Nova's driver does them."""

from __future__ import annotations

import random
import time
import types
from collections.abc import Callable
from collections.abc import Sequence

from nova.compute import task_states

from gpgpu_plugin.compute import resource_tracker
from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain.allocation import request
from gpgpu_plugin.objects import claim as claim_obj
from gpgpu_plugin.virt import assignment_selector
from gpgpu_plugin.virt import migration as virt_migration
from tests.fixtures import tenant
from tests.storm import ground_truth
from tests.storm import nova as nova_mod

VARIANT = 'H100'
_COPY_TIME = 0.1
"""Mean duration of a step of libvirt in seconds."""


class LibvirtError(Exception):
    """A guest cannot be started or stopped."""


# The guests of the model have no memory on NUMA nodes.
_FIT = types.SimpleNamespace(
    extend=lambda asked: asked, follow=lambda asked, granted: None)


def claim_request(instance: str, host: str, gpus: int,
                  migration: nova_mod.Migration | None = None,
                  ) -> claim_obj.ClaimRequest:
    """Return the request for an instance's GPUs on a host.

    :param migration: the migration whose destination the host is
    """
    return claim_obj.ClaimRequest(
        **tenant.TENANT,
        instance_uuid=instance, host=host,
        role=claim_obj.ClaimRole.INSTANCE if migration is None
        else claim_obj.ClaimRole.DESTINATION,
        migration_uuid=None if migration is None else migration.uuid,
        source_host=None if migration is None else migration.source_compute,
        request=request.Request(demands=(request.Demand(
            resource_class=naming.resource_class(VARIANT), count=gpus),)))


class Moves:
    """Steps of resizes on one host.

    Each method does one step, and sets the next one. If it raises, the
    migration has failed.
    """

    def __init__(self, tracker: resource_tracker.ResourceTracker,
                 truth: ground_truth.GroundTruth, nova: nova_mod.Nova,
                 rng: random.Random) -> None:
        self._tracker = tracker
        self._truth = truth
        self._nova = nova
        self._rng = rng
        self.steps: dict[str, Callable[
            [nova_mod.Step, nova_mod.Migration], None]] = {
                'prep_resize': self._prep_resize,
                'resize_instance': self._resize_instance,
                'finish_resize': self._finish_resize,
                'confirm_resize': self._confirm_resize,
                'revert_resize': self._revert_resize,
                'finish_revert_resize': self._finish_revert_resize}

    def run(self, step: nova_mod.Step) -> None:
        """Run a step of a move.

        :raises Exception: the migration has failed
        """
        assert step.migration is not None
        self.steps[step.name](step, step.migration)

    def _libvirt(self) -> None:
        """Take some time, and fail now and then.

        :raises LibvirtError: libvirt failed
        """
        if self._rng.random() < 0.05:
            raise LibvirtError
        time.sleep(self._rng.expovariate(1 / _COPY_TIME))

    def _start(self, instance: str,
               assignments: Sequence[claim_obj.Assignment],
               gpus: int) -> None:
        assert len(assignments) == gpus, (
            f'instance {instance} has {len(assignments)} of {gpus} GPUs')
        self._libvirt()
        self._truth.start(instance, [
            assignment.stable_id for assignment in assignments])

    def _rest(self, step: nova_mod.Step) -> None:
        """Let the instance run for a while before it moves or ends."""
        self._nova.set_step(
            step.uuid, self._rng.choice(('delete', 'resize')), None,
            self._rng.uniform(0, 0.8))

    def _selected(self, instance: str,
                  which: assignment_selector.Selector) -> list[
                      claim_obj.Assignment]:
        return [assignment for assignment
                in self._tracker.assignments.of_instance(instance)
                if which(assignment)]

    def _prep_resize(self, step: nova_mod.Step,
                     migration: nova_mod.Migration) -> None:
        """Claim on the destination, before the source does anything."""
        end = virt_migration.claim(
            self._tracker, claim_request(
                step.uuid, self._tracker.host, migration.new_gpus, migration),
            _FIT)
        try:
            self._libvirt()
        except LibvirtError:
            # The source cannot be called: Nova aborts the claim.
            end()
            raise
        self._nova.set_step(
            step.uuid, 'resize_instance', migration.source_compute)

    def _resize_instance(self, step: nova_mod.Step,
                         migration: nova_mod.Migration) -> None:
        """Stop the guest on the source."""
        self._nova.update(step, status='migrating',
                          task=task_states.RESIZE_MIGRATING)
        with self._tracker.builds.running(step.uuid):
            try:
                self._libvirt()
            except LibvirtError:
                self._tracker.release_instance(
                    step.uuid, assignment_selector.destination_of(migration),
                    host=migration.dest_compute)
                raise
            self._truth.end(step.uuid)
        self._nova.update(
            step, status='post-migrating', host=migration.dest_compute,
            task=task_states.RESIZE_MIGRATED)
        self._nova.set_step(step.uuid, 'finish_resize')

    def _finish_resize(self, step: nova_mod.Step,
                       migration: nova_mod.Migration) -> None:
        """Start the guest on the destination; then the user decides."""
        self._nova.update(step, task=task_states.RESIZE_FINISH,
                          gpus=migration.new_gpus)
        with self._tracker.builds.running(step.uuid):
            virt_migration.finish(
                self._tracker, step.uuid, migration,
                self._tracker.inventory.provider_uuids(), lambda: self._start(
                    step.uuid, self._selected(
                        step.uuid,
                        assignment_selector.destination_of(migration)),
                    migration.new_gpus))
        self._nova.update(step, status='finished', task=None)
        self._truth.count('moved')
        delay = self._rng.uniform(0, 0.5)
        if self._rng.random() < 0.5:
            self._nova.set_step(step.uuid, 'confirm_resize',
                                migration.source_compute, delay)
        else:
            self._nova.set_step(step.uuid, 'revert_resize', None, delay)

    def _confirm_resize(self, step: nova_mod.Step,
                        migration: nova_mod.Migration) -> None:
        """End what the source has, as MigrationMixin.confirm_migration."""
        self._nova.update(step, status='confirming')
        is_destination = assignment_selector.destination_of(migration)
        with self._tracker.builds.running(step.uuid):
            self._tracker.confirm_migration(claim_obj.MigrationConfirmation(
                instance_uuid=step.uuid, migration_uuid=migration.uuid,
                source_assignments=tuple(
                    assignment.uuid for assignment in self._selected(
                        step.uuid, lambda assignment:
                        not is_destination(assignment)))))
        self._nova.update(step, status='confirmed')
        self._truth.count('confirmed')
        self._rest(step)

    def _revert_resize(self, step: nova_mod.Step,
                       migration: nova_mod.Migration) -> None:
        """End the guest and the claim on the destination."""
        self._nova.update(step, status='reverting',
                          task=task_states.RESIZE_REVERTING)
        with self._tracker.builds.running(step.uuid):
            self._truth.end(step.uuid)
            self._tracker.release_instance(
                step.uuid, assignment_selector.destination_of(migration))
        self._nova.update(step, status='reverted')
        self._nova.set_step(
            step.uuid, 'finish_revert_resize', migration.source_compute)

    def _finish_revert_resize(self, step: nova_mod.Step,
                              migration: nova_mod.Migration) -> None:
        """Start the guest on the source with the devices that it kept."""
        self._nova.update(step, host=migration.source_compute,
                          gpus=migration.old_gpus)
        with self._tracker.builds.running(step.uuid):
            kept = self._selected(step.uuid,
                                  assignment_selector.current(
                types.SimpleNamespace(uuid=step.uuid), self._tracker,
                migration))
            self._tracker.prepare(kept)
            self._start(step.uuid, kept, migration.old_gpus)
        self._nova.update(step, task=None)
        self._truth.count('reverted')
        self._rest(step)
