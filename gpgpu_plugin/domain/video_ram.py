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
"""Video RAM of GPUs by model, as their manufacturers state it.

It is shown to operators. It is no ``memory_mib`` of a variant, all of which a
scrub must write: ECC may keep a part of the memory. The size of a BAR is no
video RAM: it is a power of two, as 128 GiB for 80, or a window of 256 MiB.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpgpu_plugin.domain import naming
from gpgpu_plugin.domain.vgpu import vgpu_type

_MIB_PER_GIB = 1024

# Ids of GPUs by their GiB. An id that boards of several sizes have is left
# out. A board with several GPUs has so much on each of them.
_GIBIBYTES: Mapping[str, Mapping[int, str]] = {
    '10de': {
        8: '13bd 13f2 1bb3',
        12: '102d 15f7',
        16: '15f8 15f9 1bb4 1db1 1db2 1db3 1db4 1e37 1eb4 1eb8 25b6',
        20: '2232',
        24: '1b38 1b39 1e38 20b7 20b9 2231 2233 2236 2237 26b8 27b6 27b8 '
            '2b8c 2c33',
        32: '1db5 1db6 1db7 1db8 1df6 2b85 2b87 2c31 2c3a',
        40: '20b0 20b1 20f1',
        48: '2235 26b1 26b3 26b5 26b7 26b9 26ba',
        64: '20b3 2337',
        80: '20b2 20b5 20b8 20f3 20f5 2313 2322 2324 2330 2331 2336',
        84: '2bb2 2bb9 2bbc',
        94: '2321 2339',
        96: '2329 233d 2342 2bb1 2bb4 2bb5',
        141: '232c 2335 233b',
        144: '2348',
        168: '2909',
        180: '2901',
        186: '2941',
        270: '3182',
        279: '31c2 31c3'},
    '1002': {
        8: '6929 7362',
        32: '738c 738e 73a1 73a3 7551',
        64: '7408 740c 740f',
        128: '74a0',
        192: '74a1 74a2 74a9',
        256: '74a5',
        288: '75a0 75a3'},
    '8086': {
        6: '56c1',
        16: '56c0 e212',
        24: 'e211',
        32: 'e222 e223',
        48: '0bd9 0bda',
        128: '0b69 0bd5 0bd6'},
    '1da3': {32: '1000 1010', 96: '1020', 128: '1060 1063'}}
_OF_MODEL = {
    (vendor, device): gibibytes * _MIB_PER_GIB
    for vendor, models in _GIBIBYTES.items()
    for gibibytes, devices in models.items() for device in devices.split()}


def of_model(vendor: str, device: str) -> int | None:
    """Return the MiB of video RAM of a whole GPU; None: not known."""
    return _OF_MODEL.get((vendor, device))


def of_type(name: str, whole: int | None) -> int | None:
    """Return the MiB of a type that is the whole GPU, or one of N equal VFs.

    Return None for other types, which have their own.

    :param whole: MiB of the whole GPU; None: not known
    """
    parts = (1 if name == naming.PASSTHROUGH
             else vgpu_type.count_of_plain_vfs(name))
    return whole // parts if whole and parts else None
