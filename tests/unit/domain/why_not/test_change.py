# SPDX-License-Identifier: Apache-2.0
"""Tests of changes that free GPUs of a host."""

from oslotest import base as oslotest_base

from gpgpu_plugin.domain import host_state
from gpgpu_plugin.domain.why_not import change
from gpgpu_plugin.domain.why_not import host as host_mod
from tests.fixtures import group as make
from tests.unit.domain.why_not import base

_S = base.State
_K = change.ChangeKind
FREE, USED = _S.AVAILABLE, _S.ASSIGNED


def subjects(host, kind):
    return [found.subject for found in change.possible(host, kind)]


class PossibleTest(oslotest_base.BaseTestCase):

    def test_each_kind_names_what_it_can_change(self):
        host = base.t4s(
            _S.DIRTY, _S.CLEANING, base.HELD, FREE, USED, draining=True,
            fields={3: {'holds': frozenset({'disabled'})}})
        self.assertEqual({
            _K.WAIT: ['/gpu0', '/gpu1'], _K.UNDRAIN: ['h1'],
            _K.ENABLE_TYPE: [], _K.ENABLE: ['/gpu3'],
            _K.REPAIR: ['/gpu2'], _K.MOVE: ['i4'],
        }, {kind: subjects(host, kind) for kind in change.OF_HOST})

    def test_missing_gpu_cannot_be_changed_from_here(self):
        host = base.t4s(_S.DIRTY, base.HELD, fields={
            number: {'present': False} for number in range(2)})
        self.assertEqual([], subjects(host, _K.WAIT))
        self.assertEqual([], subjects(host, _K.REPAIR))

    def test_silent_host_cleans_nothing(self):
        self.assertEqual([], subjects(base.t4s(
            _S.DIRTY, state=host_state.HostState.SILENT), _K.WAIT))

    def test_instances_with_few_devices_come_first(self):
        host = base.t4s(USED, USED, USED, USED,
                        users={0: 'b', 1: 'b', 2: 'c', 3: 'a'})
        self.assertEqual(['a', 'c', 'b'], subjects(host, _K.MOVE))


class AfterTest(oslotest_base.BaseTestCase):

    def available(self, host):
        [group] = host.groups
        return {name: group.available(offered)
                for name, offered in group.by_name.items()}

    def after(self, host, *changes):
        return self.available(change.after(host, [
            change.Change(kind=kind, subject=subject)
            for kind, subject in changes]))

    def test_each_kind_frees_what_it_names(self):
        host = base.t4s(_S.DIRTY, base.HELD, FREE, USED,
                        fields={2: {'holds': frozenset({'disabled'})}})
        for kind, subject in ((_K.WAIT, '/gpu0'), (_K.REPAIR, '/gpu1'),
                              (_K.ENABLE, '/gpu2'), (_K.MOVE, 'i3')):
            self.assertEqual(
                1, self.after(host, (kind, subject))['passthrough'], kind)
        self.assertEqual(0, self.after(host)['passthrough'])

    def test_undrained_host_offers_its_gpus(self):
        host = base.t4s(FREE, FREE, draining=True)
        self.assertEqual(2, self.after(
            host, (_K.UNDRAIN, 'h1'))['passthrough'])

    def test_moved_vgpus_leave_a_whole_gpu(self):
        gpu = make.gpu(mechanism='mdev')
        rows = [make.mdev_row(gpu, number, vgpu_type='T4-4Q', state=USED)
                for number in range(2)]
        host = host_mod.Host(
            name='h1', groups=(make.t4s(gpu, *rows),),
            users={rows[0].id: 'a', rows[1].id: 'b'})
        self.assertEqual({'passthrough': 0, 'T4-4Q': 3, 'T4-16Q': 0},
                         self.after(host, (_K.MOVE, 'a')))
        self.assertEqual({'passthrough': 1, 'T4-4Q': 4, 'T4-16Q': 1},
                         self.after(host, (_K.MOVE, 'a'), (_K.MOVE, 'b')))

    def test_gpu_that_was_withdrawn_is_quarantined_by_a_move(self):
        host = base.t4s(USED, fields={
            0: {'holds': frozenset({'quarantined'})}})
        self.assertEqual(['/gpu0'], subjects(host, _K.REPAIR))
        for changes, available in (
                (['move i0'], 0), (['repair /gpu0'], 0),
                (['move i0', 'repair /gpu0'], 1)):
            self.assertEqual(available, self.after(host, *(
                (_K(change.split()[0]), change.split()[1])
                for change in changes))['passthrough'], changes)

    def test_gpu_is_named_for_the_vfs_that_it_holds(self):
        held = {'holds': frozenset({'disabled', 'quarantined'})}
        gpu = make.gpu(mechanism='vf', **held)
        vfs = [make.vf(gpu, number, **held) for number in range(2)]
        host = host_mod.Host(name='h1', groups=(make.t4s(gpu, *vfs),))
        for kind in (_K.ENABLE, _K.REPAIR):
            self.assertEqual([gpu.id], subjects(host, kind))
        self.assertEqual({0}, set(self.available(host).values()))
        self.assertEqual(2, self.after(
            host, (_K.ENABLE, gpu.id), (_K.REPAIR, gpu.id))['T4-4Q'])

    def test_instance_that_moved_uses_nothing(self):
        host = base.t4s(USED, USED)
        self.assertEqual({'/gpu1': 'i1'}, change.after(
            host, [change.Change(kind=_K.MOVE, subject='i0')]).users)
