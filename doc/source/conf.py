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
"""Sphinx: ``tox -e docs``; a warning is an error there."""

project = 'gpgpu_plugin'
author = 'The gpgpu_plugin authors'
version = release = '0.1.0'
language = 'en'

extensions = [
    'oslo_config.sphinxext',
    'reno.sphinxext',
]
exclude_patterns = []
highlight_language = 'none'

html_theme = 'alabaster'
html_theme_options = {
    'description': 'Whole GPUs as first-class devices of OpenStack Nova',
    'fixed_sidebar': True,
}
html_copy_source = False
