# SPDX-License-Identifier: Apache-2.0
"""Sphinx: ``tox -e docs``; a warning is an error there."""

import re

from cliff import sphinxext
from docutils import nodes

from gpgpu_plugin import version as plugin_version
from gpgpu_plugin.cmd import commands

# The plugin's commands are no entry points.
sphinxext.commandmanager.CommandManager = commands.CommandManager

project = 'gpgpu_plugin'
author = 'The gpgpu_plugin authors'
copyright = '2026, the gpgpu_plugin authors'
version = release = plugin_version.VERSION
language = 'en'

extensions = [
    'cliff.sphinxext',
    'openstackdocstheme',
    'oslo_config.sphinxext',
    'reno.sphinxext',
]
exclude_patterns = []
highlight_language = 'none'

html_theme = 'openstackdocs'
html_copy_source = False

html_theme_options = {'sidebar_mode': 'toctree'}
openstackdocs_bug_project = ''
openstackdocs_bug_tag = ''

# Options of all lists and tables, which the page gpgpu-manage has once.
autoprogram_cliff_ignored = [
    '--help', '--quote', '--noindent', '--max-width', '--fit-width',
    '--print-empty', '--sort-ascending', '--sort-descending', '--variable',
    '--prefix']

man_pages = [
    (f'cli/{name}', name, description, author, 8) for name, description in (
        ('gpgpu-conductor', 'serve GPUs to computes and operators'),
        ('gpgpu-host', 'prepare and examine the PCI devices of a machine'),
        ('gpgpu-manage', 'manage GPUs of an OpenStack Nova cloud'),
        ('gpgpu-nova-compute', 'run nova-compute with the GPU driver'),
        ('gpgpu-status', 'check a cloud before and after an upgrade'))]


def _name_version(app, doctree):
    """Name the version of notes that have no tag.

    Without any tag reno calls it 0.0.0, after one of 1.2.3 it is 1.2.3-45.
    """
    if app.env.docname == 'release-notes':
        for title in doctree.findall(nodes.title):
            if re.fullmatch(r'0\.0\.0|[\d.]+-\d+', title.astext()):
                title.children = [nodes.Text(
                    f'{release} (not released yet)')]


def setup(app):
    """Add what this file does to Sphinx."""
    app.connect('doctree-read', _name_version)
