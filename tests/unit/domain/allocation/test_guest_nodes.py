# SPDX-License-Identifier: Apache-2.0
"""Tests of choosing NUMA nodes for a guest and its GPUs."""

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from oslotest import base as test_base

from gpgpu_plugin.domain.allocation import allocate
from gpgpu_plugin.domain.allocation import request as request_mod
from tests.fixtures import examples
from tests.unit.domain.allocation import base

_NUMAPolicy = request_mod.NUMAPolicy
_Policy = request_mod.PCINUMAPolicy
_CHOICES = st.lists(st.frozensets(
    st.integers(0, 2), min_size=1, max_size=2), min_size=1, max_size=4)
_SOCKETS = st.sampled_from([(), ({0}, {1}, {2}), ({0, 1}, {2}), ({0, 1, 2},)])


def allowed(policy, nodes, sockets):
    """Return the NUMA nodes of GPUs that Nova's policy allows, by its text."""
    near = set(nodes)
    if policy is _Policy.LEGACY:
        near.add(None)
    elif policy is _Policy.SOCKET:
        near |= {node for socket in sockets if socket & nodes
                 for node in socket}
    elif policy in (_Policy.PREFERRED, None):
        near |= {None, 0, 1, 2}
    return near


class AllocateNearTest(test_base.BaseTestCase):

    def select(self, request, nodes, choices, sockets=()):
        """Return the nodes of the selected GPUs; None: refused."""
        gpus = [base.whole_gpu(f'c{number}', numa_node=node)
                for number, node in enumerate(nodes)]
        try:
            found = allocate.allocate_near(
                base.offers(gpus), request, {}, choices, sockets)
        except request_mod.Unsatisfiable:
            return None
        by_id = {gpu.id: gpu.numa_node for gpu in gpus}
        return [by_id[selection.gpu_id] for selection in found['WHOLE']]

    @settings(derandomize=True, deadline=None,
              max_examples=examples.count(1500))
    @given(st.lists(base.NODES, max_size=6), st.integers(1, 4),
           st.sampled_from([None, *_Policy]), st.sampled_from(_NUMAPolicy),
           _CHOICES, _SOCKETS)
    def test_against_the_text_of_the_policies(
            self, nodes, count, pci_policy, policy, choices, sockets) -> None:
        sockets = [frozenset(socket) for socket in sockets]
        request = base.request({'WHOLE': count}, numa_policy=policy,
                               pci_numa_policy=pci_policy)
        strict = (_Policy.REQUIRED if policy is _NUMAPolicy.REQUIRED
                  else pci_policy)

        def enough(choice, by):
            return sum(node in allowed(by, choice, sockets)
                       for node in nodes) >= count
        found = self.select(request, nodes, choices, sockets)
        self.assertEqual(
            any(enough(choice, strict) for choice in choices),
            found is not None)
        if found is None:
            return
        self.assertEqual(count, len(found))
        chosen = allocate.nearest(
            frozenset(found), request, choices, sockets)
        self.assertIn(chosen, choices)
        self.assertLessEqual(
            set(found), allowed(strict, chosen, sockets))
        near = [choice for choice in choices
                if enough(choice, _Policy.REQUIRED)]
        if near and (strict is not None or policy is _NUMAPolicy.PREFERRED):
            self.assertEqual(near[0], chosen)
            self.assertLessEqual(set(found), near[0])

    def test_refusal_is_of_the_first_choice(self) -> None:
        request = base.request({'WHOLE': 1}, pci_numa_policy=_Policy.SOCKET)
        exc = self.assertRaises(
            request_mod.Unsatisfiable, allocate.allocate_near,
            base.offers([base.whole_gpu('c', numa_node=2)]), request, {},
            [frozenset({0}), frozenset({1})])
        self.assertEqual('numa_policy_required', exc.reason)
        self.assertIn('sockets', exc.detail)

    def test_policy_of_nova_says_nothing_about_guests_without_nodes(
            self) -> None:
        for policy in _Policy:
            request = base.request({'WHOLE': 1}, pci_numa_policy=policy)
            self.assertEqual(1, len(allocate.allocate(
                base.offers([base.whole_gpu('c')]), request, {})['WHOLE']))
