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
"""Step ``settings``: identity and layout of each function are as before."""

from __future__ import annotations

from gpgpu_plugin.domain import cleaning
from gpgpu_plugin.host.cleaning import step
from gpgpu_plugin.host.discovery import config_space


class SettingsStep(step.Step):
    """Step that compares all functions with their baselines."""

    name = cleaning.SETTINGS

    def run(self, target: step.Target) -> cleaning.StepResult:
        functions = target.read()
        differences = [
            f'{function.address} differs from its baseline: {difference}'
            for function in functions
            for difference in target.access.baselines.differences(
                function.id,
                target.device.cleaning or target.device.assignment_uuid,
                config_space.shape(target.access.binder.config(function)))]
        if differences:
            return self.failed('; '.join(differences))
        return self.passed(f'{target.address} matches its baseline',
                           functions=len(functions))
