# SPDX-License-Identifier: Apache-2.0
"""Choice of the host, and of its GPUs, that an instance should get."""

from __future__ import annotations

import abc
import bisect
import dataclasses
import itertools
import math
import operator
import random
import typing
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

from gpgpu_plugin.domain import fabric

# -- Free capacity of a host, and what a request takes of it.


WHOLE = 1000
"""Units of a whole GPU."""


class HostLinks(typing.NamedTuple):
    """Link partitions of a host's GPUs, and which GPUs are free.

    :ivar free: GPUs that are free as a whole, as a bit mask
    :ivar is_confined: whether every request must get exactly one partition
    :ivar guests: instances that have GPUs of the host
    """

    partitions: fabric.Partitions
    free: int
    is_confined: bool
    guests: int = 0

    def choice(self, gpus: int, *,
               is_linked: bool) -> fabric.PartitionChoice | None:
        """Return the GPUs whose choice costs the least; None: no fit.

        :param is_linked: whether the request must get exactly one partition
        """
        if self.is_confined or is_linked:
            return self.partitions.best(self.free, gpus)
        return self.partitions.best_gpus(self.free, gpus)

    def after(self, taken: int) -> HostLinks:
        """Return the links after an instance took some GPUs."""
        return self._replace(
            free=self.free & ~taken, guests=self.guests + 1)

    def after_share(self, is_started: bool) -> HostLinks:
        """Return the links after an instance took a share of a GPU.

        :param is_started: whether that was the first share of a GPU. A claim
            takes it of the first GPU, whatever partitions that breaks
        """
        return self.after(self.free & -self.free if is_started else 0)


class HostCapacity(typing.NamedTuple):
    """Free capacity of a host.

    Nova's own resources are not split by NUMA node here.

    :ivar milli_vcpus: free vCPUs, in thousandths
    :ivar memory_mib: free RAM
    :ivar free: free units of each GPU, in ascending order
    :ivar variant: variant of all its GPUs
    :ivar links: None: nothing is known of link partitions
    """

    milli_vcpus: int
    memory_mib: int
    free: tuple[int, ...]
    variant: str
    links: HostLinks | None = None


class WeighedRequest(typing.NamedTuple):
    """Needs of an instance.

    :ivar gpus: number of GPUs
    :ivar units: units of each of them; less than WHOLE only if gpus is 1
    :ivar variants: variants that it accepts; empty: any
    :ivar is_linked: whether its GPUs must be exactly one link partition
    """

    milli_vcpus: int
    memory_mib: int
    gpus: int
    units: int
    variants: frozenset[str]
    is_linked: bool = False

    @property
    def total_units(self) -> int:
        """Units of all its GPUs."""
        return self.gpus * self.units


def capacity_after(host: HostCapacity,
                   request: WeighedRequest) -> list[HostCapacity]:
    """Return the states that a host may have with a request placed on it.

    :returns: one for each different GPU that a share can take, the fullest
        first; empty: the request does not fit
    """
    milli_vcpus = host.milli_vcpus - request.milli_vcpus
    memory_mib = host.memory_mib - request.memory_mib
    if milli_vcpus < 0 or memory_mib < 0 or not accepts(
            request, host.variant):
        return []
    links, states = host.links, _free_after(host.free, request)
    if links is None:
        return [] if request.is_linked else [
            HostCapacity(milli_vcpus, memory_mib, free, host.variant)
            for free in states]
    if request.units == WHOLE:
        choice = links.choice(request.gpus, is_linked=request.is_linked)
        if choice is None:
            return []
        links = links.after(choice.gpus)
    return [HostCapacity(
        milli_vcpus, memory_mib, free, host.variant,
        links.after_share(is_started=whole_gpus(free) < whole_gpus(host.free))
        if 0 < request.units < WHOLE else links) for free in states]


def accepts(request: WeighedRequest, variant: str) -> bool:
    """Return whether a request may get GPUs of a variant."""
    return (not request.gpus or not request.variants
            or variant in request.variants)


def whole_gpus(free: tuple[int, ...]) -> int:
    """Return how many GPUs are free as a whole, of units in order."""
    return len(free) - bisect.bisect_left(free, WHOLE)


def _free_after(free: tuple[int, ...], request: WeighedRequest,
                ) -> list[tuple[int, ...]]:
    if not request.gpus:
        return [free]
    if request.units < WHOLE:
        return [take(free, units, request.units)
                for units in sorted(set(free)) if units >= request.units]
    if whole_gpus(free) < request.gpus:
        return []
    rest = free[:len(free) - request.gpus]
    return [(0,) * request.gpus + rest]


def take(free: tuple[int, ...], units: int, taken: int) -> tuple[int, ...]:
    """Return free units after a share of a GPU with so many was taken."""
    rest = list(free)
    rest.remove(units)
    bisect.insort(rest, units - taken)
    return tuple(rest)


# -- Mix of a cloud's requests: the share of each kind of request.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mix:
    """Requests with their shares, the commonest first.

    A request for linked GPUs counts like one for as many others. What
    schedulers send and conductors keep does not tell them apart, and that
    would not help: a choice that breaks partitions has its cost anyway.

    :ivar shares: their sum is 1
    """

    shares: Mapping[WeighedRequest, float]

    @classmethod
    def count(cls, counts: Mapping[WeighedRequest, float]) -> Mix:
        """Return the mix of counted requests."""
        merged: dict[WeighedRequest, float] = {}
        for request, number in counts.items():
            key = request._replace(is_linked=False)
            merged[key] = merged.get(key, 0) + number
        total = sum(merged.values())
        # Equal counts are put in an order that no hash decides.
        return cls(shares={
            request: merged[request] / total for request in sorted(
                merged, key=lambda request: (-merged[request], _key(request)))
        })

    @classmethod
    def learnt(cls, counts: Mapping[WeighedRequest, float],
               flavors: Collection[WeighedRequest]) -> Mix:
        """Return the mix of counted requests and some that are assumed.

        The assumed ones are equally many for each flavor. Without them, a
        large request would count as one that never arrives because it is not
        among the first.

        Requests without GPUs count as at most as many as those with GPUs.
        Most of them may go to other hosts, and anybody may make very many:
        the sequences would have hardly a request for GPUs.
        """
        assumed = _ASSUMED / max(1, len(flavors))
        both = {
            request: counts.get(request, 0.0)
            + (assumed if request in flavors else 0.0)
            for request in {**dict.fromkeys(flavors), **counts}}
        total = sum(both.values())
        with_gpus = sum(number for request, number in both.items()
                        if request.gpus)
        if not 0 < with_gpus < total / 2:
            return cls.count(both)
        part = with_gpus / (total - with_gpus)
        return cls.count({
            request: number if request.gpus else number * part
            for request, number in both.items()})

    def draw(self, *, sequences: int, length: int,
             ) -> list[list[WeighedRequest]]:
        """Return sequences of requests, the same in every process.

        The number of requests of a kind in a sequence differs from its share
        in the mix by less than one; over all sequences it is closer still.
        The order within a sequence is random. Figures from a few such
        sequences vary less than figures from independent requests.
        """
        generator = random.Random(0)
        kinds = sorted(self.shares, key=_kind)
        ends = list(itertools.accumulate(map(self.shares.__getitem__, kinds)))
        drawn = []
        for number in range(sequences if kinds else 0):
            sequence = [kinds[bisect.bisect_left(
                ends, (position + (number + .5) / sequences) / length
                * ends[-1])] for position in range(length)]
            generator.shuffle(sequence)
            drawn.append(sequence)
        return drawn

    @property
    def mean_units(self) -> float:
        """Units of GPUs that a request needs on average."""
        return sum(share * request.total_units
                   for request, share in self.shares.items())


_ASSUMED = 100.0
"""Requests that count beside those that arrived."""

_FIRST = 50
_FEW = 10_000
_STEP = 1000


def mix_version(arrivals: int) -> int:
    """Return the version of a mix, by the number of requests counted for it.

    It rises whenever this number has doubled, and beyond 10,000 with every
    thousand, since a policy begins anew with each version. 0: there are too
    few requests to know a mix.
    """
    if arrivals < _FIRST:
        return 0
    steps = int(math.log2(min(arrivals, _FEW) / _FIRST))
    return 1 + steps + max(0, arrivals - _FEW) // _STEP


def _key(request: WeighedRequest) -> tuple[object, ...]:
    return (*request[:4], sorted(request.variants))


def _kind(request: WeighedRequest) -> tuple[object, ...]:
    """Return a key that puts alike requests beside one another."""
    return (sorted(request.variants), request.total_units, *request[:4])


# -- The contract of policies, and the one that spreads.


UNFIT: float = float('-inf')
"""Score of a host that a request does not fit on."""
_MAX_MILLI_VCPUS = 10_000_000
_TIE = 1e-4


class PolicyChoice(typing.NamedTuple):
    """A way to place a request on a host.

    :ivar gain: its worth, as far as the host's state decides it
    :ivar lost: capacity that the cloud loses for each scarce class; empty:
        the gain says all
    :ivar after: the host's state with the request
    """

    gain: float
    lost: tuple[int, ...]
    after: HostCapacity

    @property
    def packed_gain(self) -> float:
        """Return the gain, which is greater for the fuller of equal hosts."""
        return self.gain - _TIE * sum(self.after.free) / WHOLE


class Policy(abc.ABC):
    """Policy that says which host, and which GPUs of it, is the best.

    Nothing that fits is refused.
    """

    def start(  # noqa: B027 - a policy without a state needs none
            self, mix: Mix, hosts: Iterable[HostCapacity]) -> None:
        """Take another mix of requests and the state of all hosts."""

    def change(  # noqa: B027 - as above
            self, before: HostCapacity, after: HostCapacity) -> None:
        """Take the new state of one host."""

    @abc.abstractmethod
    def gain(self, host: HostCapacity, request: WeighedRequest,
             after: HostCapacity) -> float:
        """Return the worth of a state after a request; more is better."""

    def choices(self, host: HostCapacity, request: WeighedRequest,
                ) -> list[PolicyChoice]:
        """Return the choices on a host that may turn out to be the best.

        :returns: at most one for the same loss; empty: does not fit
        """
        best: PolicyChoice | None = None
        for after in capacity_after(host, request):
            gain = self.gain(host, request, after)
            if best is None or gain > best.gain:
                best = PolicyChoice(gain, (), after)
        return [best] if best else []

    def price(self, lost: tuple[int, ...]) -> float:
        """Return what lost capacity costs now, to subtract from the gain."""
        return 0.0

    def finish(self, scores: Sequence[float]) -> Sequence[float]:
        """Return final scores of all hosts; UNFIT remains."""
        return scores


class Spread(Policy):
    """Policy that prefers the host with the most free GPUs."""

    def gain(self, host: HostCapacity, request: WeighedRequest,
             after: HostCapacity) -> float:
        """Return the free GPUs; free vCPUs decide among equal hosts."""
        return sum(host.free) / WHOLE + (
            host.milli_vcpus / _MAX_MILLI_VCPUS)


# -- Capacity for requests that few hosts can take, and the price of losing it.


_MAX_CLASSES = 24
_MILLI_VCPUS = 8000
_MEMORY_MIB = 32768


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScarceClass:
    """Requests that few hosts can take: several GPUs, or bound to variants.

    :ivar share: share of all requests
    """

    milli_vcpus: int
    memory_mib: int
    gpus: int
    variants: frozenset[str]
    share: float = 0.0

    def capacity(self, host: HostCapacity) -> int:
        """Return how many such requests a host has capacity for."""
        if self.variants and host.variant not in self.variants:
            return 0
        count = self._of_gpus(host)
        if count and self.milli_vcpus:
            count = min(count, host.milli_vcpus // self.milli_vcpus)
        if count and self.memory_mib:
            count = min(count, host.memory_mib // self.memory_mib)
        return count

    def _of_gpus(self, host: HostCapacity) -> int:
        links = host.links
        if links is not None and links.is_confined:
            return links.partitions.count(links.free, self.gpus)
        return whole_gpus(host.free) // self.gpus

    def needs_at_least(self, other: ScarceClass) -> bool:
        """Return whether what can take this class can take another one."""
        return (self.gpus >= other.gpus
                and self.milli_vcpus >= other.milli_vcpus
                and self.memory_mib >= other.memory_mib
                and (not other.variants or (
                    bool(self.variants)
                    and self.variants <= other.variants)))


def scarce_classes(mix: Mix) -> list[ScarceClass]:
    """Return all classes of a mix, those with the most GPUs first."""
    found: dict[ScarceClass, float] = {}
    for request, share in mix.shares.items():
        if request.units < WHOLE or not (
                request.gpus > 1 or (request.gpus and request.variants)):
            continue
        key = ScarceClass(
            milli_vcpus=_round_up(request.milli_vcpus, _MILLI_VCPUS),
            memory_mib=_round_up(request.memory_mib, _MEMORY_MIB),
            gpus=request.gpus, variants=request.variants)
        found[key] = found.get(key, 0.0) + share
    return sorted((dataclasses.replace(key, share=share)
                   for key, share in found.items()),
                  key=lambda scarce: -scarce.share * scarce.gpus)


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step


class Scarcity:
    """The chance that capacity of a class runs out, for a cloud of hosts."""

    def __init__(self, mix: Mix,
                 hosts: Iterable[HostCapacity]) -> None:
        every = scarce_classes(mix)
        self.classes: Sequence[ScarceClass] = every[:_MAX_CLASSES]
        self._demands = [
            sum(other.share * other.gpus / scarce.gpus for other in every
                if other.needs_at_least(scarce)) for scarce in self.classes]
        self._mean_units = mix.mean_units
        self._no_capacity = (0,) * len(self.classes)
        self._known: dict[tuple[object, ...], tuple[int, ...]] = {}
        self._units = 0
        self._capacity = [0] * len(self.classes)
        for host in hosts:
            self._add(host, 1)

    def capacity(self, host: HostCapacity) -> tuple[int, ...]:
        """Return a host's capacity for each class."""
        whole = whole_gpus(host.free)
        if not whole:
            return self._no_capacity
        # All that classes need is a multiple of these steps.
        key = (whole, host.milli_vcpus // _MILLI_VCPUS,
               host.memory_mib // _MEMORY_MIB, host.variant,
               host.links and host.links[:3])
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = tuple(
                [scarce.capacity(host) for scarce in self.classes])
        return found

    def change(self, before: HostCapacity, after: HostCapacity) -> None:
        """Replace the state of a host."""
        self._add(before, -1)
        self._add(after, 1)

    def _add(self, host: HostCapacity, sign: int) -> None:
        self._units += sign * sum(host.free)
        if not host.free or host.free[-1] < WHOLE:
            return
        self._capacity = [
            count + sign * more for count, more in
            zip(self._capacity, self.capacity(host), strict=True)]

    def prices(self) -> list[float]:
        """Return the GPUs that the loss of one request of a class costs."""
        arrivals = self._units / self._mean_units if self._mean_units else 0.0
        return [
            scarce.gpus / (1 + math.exp(min(700.0, -1.7 * (
                (arrivals * demand - count)
                / math.sqrt(arrivals * demand + 1) + 3))))
            for scarce, demand, count in zip(
                self.classes, self._demands, self._capacity, strict=True)]


# -- How many GPUs of a host the cloud's mix of requests would leave unused.


_SEQUENCES = 32
_LENGTH = 80
_LEFTOVER_MILLI_VCPUS = 4000
_LEFTOVER_MEMORY_MIB = 16384
_MAX_STATES = 400_000

Needs = tuple[int, int, int, int]


class Leftover:
    """Leftover of states of hosts, remembered by rounded state.

    The rounding of vCPUs and RAM loses nothing that can be measured.
    """

    def __init__(self, mix: Mix) -> None:
        self._sequences = mix.draw(sequences=_SEQUENCES, length=_LENGTH)
        self._by_variant: dict[str, list[list[Needs]]] = {}
        self._known: dict[tuple[object, ...], float] = {}

    def of(self, host: HostCapacity) -> float:
        """Return the mean number of GPUs that random requests leave over."""
        if not host.free or not host.free[-1]:
            return 0.0
        key = (host.milli_vcpus // _LEFTOVER_MILLI_VCPUS,
               host.memory_mib // _LEFTOVER_MEMORY_MIB, host.free,
               host.variant)
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _MAX_STATES:
                self._known.clear()
            found = self._known[key] = self._compute(
                host._replace(milli_vcpus=key[0] * _LEFTOVER_MILLI_VCPUS,
                              memory_mib=key[1] * _LEFTOVER_MEMORY_MIB))
        return found

    def _compute(self, host: HostCapacity) -> float:
        sequences = self._by_variant.get(host.variant)
        if sequences is None:
            sequences = self._by_variant[host.variant] = [
                [(request.milli_vcpus, request.memory_mib, request.gpus,
                  request.units) for request in sequence
                 if accepts(request, host.variant)]
                for sequence in self._sequences]
        whole = whole_gpus(host.free)
        partial = [units for units in host.free
                   if 0 < units < WHOLE]
        if not sequences:
            return sum(host.free) / WHOLE
        return sum(_leave(sequence, host.milli_vcpus, host.memory_mib, whole,
                          partial[:])
                   for sequence in sequences) / (
                       len(sequences) * WHOLE)


def _leave(sequence: Iterable[Needs], vcpus: int, memory: int, whole: int,
           partial: list[int]) -> int:
    """Return the units left after a sequence, a share on the fullest GPU.

    :param partial: free units of GPUs in part, ascending; changed
    """
    # One loop without calls: it runs for every new state of a host.
    most = partial[-1] if partial else 0
    for milli_vcpus, memory_mib, gpus, units in sequence:
        if milli_vcpus > vcpus or memory_mib > memory:
            continue
        if gpus:
            if units == WHOLE:
                if gpus > whole:
                    continue
                whole -= gpus
            elif units <= most:
                rest = partial.pop(bisect.bisect_left(partial, units)) - units
                if rest:
                    bisect.insort(partial, rest)
                most = partial[-1] if partial else 0
            elif whole:
                whole -= 1
                bisect.insort(partial, WHOLE - units)
                most = partial[-1]
            else:
                continue
            if not whole and not most:
                return 0
        vcpus -= milli_vcpus
        memory -= memory_mib
    return whole * WHOLE + sum(partial)


# -- Which host should get vGPUs, where one GPU has one type at a time.
#
# A GPU that was started with a type is of no use for whole-GPU requests and
# for other types, so that it is filled before another one is started.
#
# ``choose_for_vgpus`` says which GPUs of a host a claim takes, so that the
# weigher scores what the claim will do. Within a host neither free vCPUs and
# RAM nor the mix of requests matter: whichever GPUs are taken, the host has
# the same vCPUs and RAM left, and GPUs that have the same units left are
# alike. The claim does not need them. A property test compares it with
# domain.allocation.allocate.


EVERYWHERE = -1
"""The mask of all GPUs."""

_STARTED = 1000.0
"""Cost of starting a GPU; more than any number of units left on one."""

Tiers = Iterable[Iterable[int]]
"""Masks of GPUs of which one must have all units; the first tier in which one
has enough counts, and the masks of a tier are equally good."""

ANYWHERE: Tiers = ((EVERYWHERE,),)


def choose_for_vgpus(units: Mapping[int, int], most: int, count: int,
                     tiers: Tiers = ANYWHERE, *, breadth_first: bool = False,
                     ) -> dict[int, int]:
    """Return how many units of a type a claim takes of each GPU.

    :param units: available units of the type, by the number of the GPU
    :param most: units of a GPU that has no other ones
    :param breadth_first: whether the emptiest GPU is the first one
    :returns: empty: no tier has enough
    """
    for tier in tiers:
        found = []
        for part in tier:
            within = {gpu: number for gpu, number in units.items()
                      if part >> gpu & 1}
            if sum(within.values()) >= count:
                taken = _take(within, count, breadth_first)
                found.append((_cost(within, most, taken, breadth_first),
                              taken))
        if found:
            return min(found, key=lambda outcome: outcome[0])[1]
    return {}


def _take(units: Mapping[int, int], count: int,
          breadth_first: bool) -> dict[int, int]:
    """Take units one after the other, as domain.allocation.allocate does."""
    taken: dict[int, int] = {}
    sign = -1 if breadth_first else 1
    for _ in range(count):
        gpu = min((sign * (number - taken.get(gpu, 0)), gpu)
                  for gpu, number in units.items()
                  if number > taken.get(gpu, 0))[1]
        taken[gpu] = taken.get(gpu, 0) + 1
    return taken


def _cost(units: Mapping[int, int], most: int, taken: Mapping[int, int],
          breadth_first: bool) -> tuple[object, ...]:
    """Return the cost of a choice in one place, as allocate compares them."""
    empty = {gpu for gpu, number in units.items() if number == most}
    sign = -1 if breadth_first else 1
    return (sign * len(empty & taken.keys()), sign * len(empty),
            sorted(taken))


def vgpu_gain(units: Mapping[int, int], most: int, count: int,
              tiers: Tiers = ANYWHERE, *, breadth_first: bool = False,
              is_spread: bool = False) -> float:
    """Return the worth of taking units on a host; more is better.

    :param is_spread: the host with the most units first
    :returns: UNFIT: there are too few
    """
    taken = choose_for_vgpus(units, most, count, tiers,
                             breadth_first=breadth_first)
    if not taken:
        return UNFIT
    total = sum(units.values())
    if is_spread:
        return float(total)
    started = sum(units[gpu] == most for gpu in taken)
    left = sum(units[gpu] - number for gpu, number in taken.items())
    # Of equal choices the fullest host.
    return -_STARTED * started - left - total / _STARTED


# -- The plugin's own policy: keep what the coming requests need.


_GUEST = .01
"""Gain for each instance on a host. It decides between hosts on which a choice
breaks the same: a host with many instances will not soon be empty anyway."""


class Foresight(Policy):
    """Policy that leaves the fewest GPUs over and saves scarce capacity.

    The gain is the leftover before minus the leftover after. Each request of
    a scarce class for which the cloud loses the capacity costs its GPUs,
    times the chance that this capacity runs out. A choice that takes capacity
    from several classes costs as much as the dearest: the classes share the
    same GPUs, and a sum would count these once for each size of request.
    """

    def __init__(self) -> None:
        self.start(Mix(shares={}), ())

    def start(self, mix: Mix, hosts: Iterable[HostCapacity],
              ) -> None:
        """Draw sequences and classes from the mix, and count capacity."""
        self._leftover = Leftover(mix)
        self._scarcity = Scarcity(mix, hosts)
        self._prices: list[float] | None = None

    def change(self, before: HostCapacity, after: HostCapacity) -> None:
        """Count the capacity of a host anew."""
        self._scarcity.change(before, after)
        self._prices = None

    def gain(self, host: HostCapacity, request: WeighedRequest,
             after: HostCapacity) -> float:
        """Return how many GPUs less are left over."""
        return self._leftover.of(host) - self._leftover.of(after)

    def choices(self, host: HostCapacity, request: WeighedRequest,
                ) -> list[PolicyChoice]:
        """Return the best choice for each different loss of capacity."""
        if host.links is not None and request.units == WHOLE:
            return self._linked(host, host.links, request)
        best: dict[tuple[int, ...], PolicyChoice] = {}
        before: tuple[int, ...] | None = None
        for after in capacity_after(host, request):
            if before is None:
                before = self._scarcity.capacity(host)
            lost = tuple(map(
                operator.sub, before, self._scarcity.capacity(after)))
            gain = self.gain(host, request, after)
            if lost not in best or gain > best[lost].gain:
                best[lost] = PolicyChoice(gain, lost, after)
        return list(best.values())

    def _linked(self, host: HostCapacity, links: HostLinks,
                request: WeighedRequest) -> list[PolicyChoice]:
        """Return the choice that breaks the least link partitions.

        Where exactly one partition must be taken, what it breaks says all.
        """
        after, choice = (
            capacity_after(host, request),
            links.choice(request.gpus, is_linked=request.is_linked))
        if not after or choice is None:
            return []
        if links.is_confined or request.is_linked:
            return [PolicyChoice(
                links.guests * _GUEST - choice.cost, (), after[0])]
        return [PolicyChoice(
            self.gain(host, request, after[0]) - choice.cost, tuple(map(
                operator.sub, self._scarcity.capacity(host),
                self._scarcity.capacity(after[0]))), after[0])]

    def price(self, lost: tuple[int, ...]) -> float:
        """Return the GPUs that lost capacity is worth."""
        if not lost:
            return 0.0
        if self._prices is None:
            self._prices = self._scarcity.prices()
        return max([count * price for count, price in
                    zip(lost, self._prices, strict=True) if count],
                   default=0.0)


# -- The policies by name.


POLICIES: dict[str, type[Policy]] = {
    'pack': Foresight, 'spread': Spread}
