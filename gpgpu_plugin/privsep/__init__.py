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
"""What needs more rights than the user of nova-compute has.

It runs in a daemon of oslo.privsep, which nova-compute starts by
``[gpgpu_sys_admin] helper_command``; nothing else of the plugin needs root.
"""

from __future__ import annotations

from oslo_privsep import capabilities
from oslo_privsep import priv_context

# CAP_DAC_OVERRIDE: attributes belong to root; CAP_SYS_ADMIN: vfio and reset.
sys_admin_pctxt = priv_context.PrivContext(
    'gpgpu_plugin',
    cfg_section='gpgpu_sys_admin',
    pypath=f'{__name__}.sys_admin_pctxt',
    capabilities=[capabilities.CAP_DAC_OVERRIDE,
                  capabilities.CAP_SYS_ADMIN])
